"""The product of one row that is rounded on the way, in CUDA C++; others are rounded by a call.

A launch that does nothing but round a row takes longer than it does to round it, and all the while
little of the weight is on its way. So each block of the product rounds the row for itself. Its bits
are those of the two calls.
"""

import torch

from jit_kernels.fp8_linear import separate_backend
from jit_kernels.fp8_linear.cuda_backend import call, split, takes_weight
from jit_kernels.rms_norm import cuda_backend as rms_norm

# Channels that the threads of a block have, as they are and normed.
_MOST, _MOST_NORMED = 8192, 4096


def fp8_linear_of(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    invariant: bool,
) -> torch.Tensor:
    """Round and multiply; see `jit_kernels.fp8_linear.fp8_linear_of`."""
    if invariant or not rounds_rows(x, norm) or not takes_weight(weight, weight_scales):
        return separate_backend.fp8_linear_of(x, weight, weight_scales, norm, eps, invariant)
    lines, depth = weight.shape
    out = torch.empty((1, lines), dtype=torch.bfloat16, device=x.device)
    call(
        "stream_row",
        x.device,
        *(x.data_ptr(), None if norm is None else norm.data_ptr(), eps),
        *(weight.data_ptr(), weight_scales.data_ptr(), out.data_ptr()),
        *(lines, depth, split(lines, depth)),
    )
    return out


def rounds_rows(x: torch.Tensor, norm: torch.Tensor | None) -> bool:
    """Say whether the kernel takes rows; see `jit_kernels.fp8_linear.rounds_rows`."""
    rows, depth = x.shape
    if rows != 1 or x.dtype != torch.bfloat16 or x.stride(1) != 1 or x.data_ptr() % 16:
        return False
    # What `norm_quant` leaves to another kernel has the bits of that one.
    return depth <= _MOST if norm is None else depth <= _MOST_NORMED and rms_norm.takes(x, norm)
