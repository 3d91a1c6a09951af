"""Products of fp8 numbers in plain torch: both sides to float32, one sum."""

import torch

from jit_kernels.tile_linear.reference import tile_linear

BLOCK = 128


def fp8_linear(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply; see `jit_kernels.fp8_linear.fp8_linear`."""
    x = codes.to(torch.float32) * scales.repeat_interleave(BLOCK, -1)
    return tile_linear(x, dense(weight, weight_scales), torch.bfloat16)


def fp8_linear_grouped(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.fp8_linear.fp8_linear_grouped`."""
    parts = [
        fp8_linear(codes[:, group], scales[:, group], mine, weight_scales[group])
        for group, mine in enumerate(weight)
    ]
    return torch.stack(parts, 1)


def dense(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers of fp8 blocks in float32, where every one of them is exact.

    weight  [..., N, K] float8_e4m3fn
    scales  [..., ceil(N / 128), ceil(K / 128)] float32
    """
    rows, columns = weight.shape[-2:]
    by_row = scales.repeat_interleave(BLOCK, -2)[..., :rows, :]
    return weight.to(torch.float32) * by_row.repeat_interleave(BLOCK, -1)[..., :columns]
