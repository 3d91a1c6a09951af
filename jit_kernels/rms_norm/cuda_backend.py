"""Norms of wide bfloat16 rows in CUDA C++, the weight read once for many; others in torch."""

import torch
import torch.nn.functional as F

from jit_kernels.cuda_rows import call, is_aligned, is_bf16, processors

# Channels of rows: a multiple of what a warp has, up to what a block has.
STEP, MOST = 512, 8192


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Normalise the last axis; see `jit_kernels.rms_norm.rms_norm`."""
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    if not x.numel() or out_dtype != torch.bfloat16 or not takes(rows, weight):
        return _norm_in_torch(x, weight, eps, out_dtype)
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


def _norm_in_torch(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Norm any rows as the reference does, but add up in an order that other rows do not change.

    How torch adds up on a device depends on the number of rows.
    """
    wide = x.to(torch.float32)
    total = wide.square()
    while total.shape[-1] > 1:
        low, high = F.pad(total, (0, total.shape[-1] % 2)).chunk(2, -1)
        total = low + high
    wide = wide * (total / x.shape[-1] + eps).rsqrt()
    return (wide if weight is None else wide * weight).to(out_dtype)
