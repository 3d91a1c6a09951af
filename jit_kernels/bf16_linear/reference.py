"""Products of bfloat16 numbers in plain torch."""

import torch

from jit_kernels.tile_linear import reference


def bf16_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Multiply; see `jit_kernels.bf16_linear.bf16_linear`."""
    return reference.tile_linear(x, weight, out_dtype)


def bf16_linear_grouped(
    x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.bf16_linear.bf16_linear_grouped`."""
    parts = [bf16_linear(x[:, group], mine, out_dtype) for group, mine in enumerate(weight)]
    return torch.stack(parts, 1)
