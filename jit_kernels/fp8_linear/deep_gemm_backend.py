"""Products of fp8 numbers by DeepGEMM, whose rows do not depend on their number.

It takes sizes N that are multiples of 8; other weights go to the reference. Source: DeepGEMM 0.1.4,
`sm90_fp8_gemm_1d2d`; a product of groups is its batched form, `fp8_einsum` with fp32 scales.
"""

from collections.abc import Sequence

import torch
from deep_gemm import fp8_einsum, fp8_gemm_nt

from jit_kernels.fp8_linear import cuda_backend, reference

_ALIGNED = 4
_RECIPE = (1, 128, 128)


def fp8_linear(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply; see `jit_kernels.fp8_linear.fp8_linear`."""
    columns = weight.shape[0]
    if columns % 8:
        return reference.fp8_linear(codes, scales, weight, weight_scales)
    out = torch.empty((codes.shape[0], columns), dtype=torch.bfloat16, device=codes.device)
    if out.numel():
        mine = (codes.contiguous(), columns_aligned(scales))
        fp8_gemm_nt(mine, (weight, weight_scales), out)
    return out


def fp8_linear_grouped(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.fp8_linear.fp8_linear_grouped`."""
    rows, groups, _ = codes.shape
    columns = weight.shape[1]
    if columns % 8:
        return reference.fp8_linear_grouped(codes, scales, weight, weight_scales)
    out = torch.empty((rows, groups, columns), dtype=torch.bfloat16, device=codes.device)
    if out.numel():
        flat = columns_aligned(scales.flatten(1))
        mine = flat.unflatten(1, (groups, -1))
        fp8_einsum("bhr,hdr->bhd", (codes, mine), (weight, weight_scales), out, recipe=_RECIPE)
    return out


def fp8_linear_mixed(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Stream the weight for few rows, whose time its bytes are, else do as `fp8_linear` does."""
    if cuda_backend.takes(codes, weight, weight_scales):
        return cuda_backend.fp8_linear(codes, scales, weight, weight_scales)
    return fp8_linear(codes, scales, weight, weight_scales)


def fp8_linear_grouped_mixed(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Do as `fp8_linear_mixed` does, group by group."""
    even = cuda_backend.takes_groups(codes, scales)
    if even and cuda_backend.takes(codes, weight, weight_scales):
        return cuda_backend.fp8_linear_grouped(codes, scales, weight, weight_scales)
    return fp8_linear_grouped(codes, scales, weight, weight_scales)


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's call for so many rows, if there is one; see `jit_kernels.vendor_calls`.

    sizes  of the weight, [N, K] or [G, N, K]
    mixed  few rows are streamed
    """
    *groups, columns, depth = sizes
    if columns % 8:
        return
    blocks = depth // 128
    codes = torch.empty((rows, *groups, depth), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((rows, *groups, blocks), device=device)
    weight = torch.empty(tuple(sizes), dtype=torch.float8_e4m3fn, device=device)
    weight_scales = torch.empty((*groups, -(-columns // 128), blocks), device=device)
    if not mixed or not cuda_backend.takes(codes, weight, weight_scales):
        multiply = fp8_linear_grouped if groups else fp8_linear
        multiply(codes, scales, weight, weight_scales)


def columns_aligned(scales: torch.Tensor) -> torch.Tensor:
    """Return [T, blocks] scales column by column, columns aligned to 16 bytes; most are already."""
    rows, blocks = scales.shape
    column = -(-rows // _ALIGNED) * _ALIGNED
    if scales.stride() == (1, column):
        return scales
    aligned = torch.empty((blocks, column), dtype=scales.dtype, device=scales.device)
    return aligned.T[:rows].copy_(scales)
