"""Queries as FlashMLA takes them: of 64 or 128 heads, those that a rank does not have are zeros."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared

__all__ = ["pad_heads", "pad_queries"]

_HEADS = (64, 128)
_BLOCK = 4096


@prepared
@triton.jit
def _kernel(
    q_ptr: tl.tensor, out_ptr: tl.tensor, HELD: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    q = tl.load(q_ptr + token * HELD + at, mask=at < HELD, other=0.0)
    tl.store(out_ptr + token * WIDE + at, q, mask=at < WIDE)


def pad_heads(q: torch.Tensor, sink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries [T, H, C] and sinks [H] of 64 or 128 heads: what is added is zeros."""
    padded = pad_queries(q)
    spare = padded.shape[1] - q.shape[1]
    return padded, F.pad(sink, (0, spare)) if spare else sink


def pad_queries(q: torch.Tensor) -> torch.Tensor:
    """Return queries [T, H, C] of 64 or 128 heads: what is added is zeros."""
    tokens, heads, width = q.shape
    wanted = _HEADS[0] if heads <= _HEADS[0] else _HEADS[1]
    if heads == wanted:
        return q
    out = q.new_empty((tokens, wanted, width))
    _kernel[(tokens, triton.cdiv(wanted * width, _BLOCK))](
        q.contiguous(), out, HELD=heads * width, WIDE=wanted * width, BLOCK=_BLOCK, num_warps=8
    )
    return out
