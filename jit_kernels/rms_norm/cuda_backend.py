"""Norms of wide bfloat16 rows in CUDA C++, the weight read once for many; others by Triton."""

import torch

from jit_kernels.cuda_rows import call, is_aligned, is_bf16, processors
from jit_kernels.rms_norm import triton_backend

# Channels of rows: a multiple of what a warp has, up to what a block has.
STEP, MOST = 512, 8192


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Normalise the last axis; see `jit_kernels.rms_norm.rms_norm`."""
    rows = triton_backend.as_rows(x)
    if not x.numel() or out_dtype != torch.bfloat16 or not takes(rows, weight):
        return triton_backend.rms_norm(x, weight, eps, out_dtype)
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    norm(rows, weight, eps, out, None)
    return out


def takes(rows: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Say whether the kernel takes rows [T, C] and their weight."""
    width = rows.shape[1]
    return (
        is_bf16(rows)
        and 0 < width <= MOST
        and width % STEP == 0
        and is_aligned(rows)
        and (weight is None or (weight.dtype == torch.float32 and is_aligned(weight)))
    )


def norm(
    rows: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None,
) -> None:
    """Norm rows into `out`, bfloat16, or codes that have `scales`."""
    call(
        "norm_rows",
        rows.device,
        *(rows.data_ptr(), rows.stride(0)),
        None if weight is None else weight.data_ptr(),
        out.data_ptr(),
        *((None, 0) if scales is None else (scales.data_ptr(), scales.stride(1))),
        *(*rows.shape, eps, processors(rows.device)),
    )
