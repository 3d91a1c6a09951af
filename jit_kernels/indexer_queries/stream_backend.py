"""Indexer queries in CUDA C++, heads streamed through the device's warps.

A warp goes through heads side by side and asks for the next ones before it works on eight. Turning
and most of the transform are products, of signs and of a token's turn, which is taken with 16 bits;
additions alone would take nearly as long as the memory. Heads of 128 bfloat16 channels, 64 of which
turn; others are left to the reference.
"""

from struct import Struct

import torch

from jit_kernels.compress_pool.cuda_calls import TURNED, aligned, launch
from jit_kernels.cuda_rows import is_aligned, is_bf16, processors
from jit_kernels.indexer_queries import reference
from jit_kernels.indexer_queries.reference import padded_heads

_WIDTH = 128
_CALL = Struct("@PPqqPPPiiif")


def indexer_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, transform and round; see `jit_kernels.indexer_queries.indexer_queries`."""
    tokens, heads, width = q.shape
    usual = (width, rotation.shape[2]) == (_WIDTH, TURNED) and is_bf16(q)
    usual = usual and weights.dtype == torch.float32
    if not tokens or not usual or not is_aligned(q):
        return reference.indexer_queries(q, weights, rotation)
    padded, rotation = padded_heads(heads), aligned(rotation.contiguous())
    codes = torch.empty((tokens, padded, width), dtype=torch.float8_e4m3fn, device=q.device)
    folded = torch.empty((tokens, padded), dtype=torch.float32, device=q.device)
    fields = (
        *(q.data_ptr(), weights.data_ptr(), q.stride(0), weights.stride(0)),
        *(rotation.data_ptr(), codes.data_ptr(), folded.data_ptr()),
        *(tokens, heads, padded, (heads * width) ** -0.5),
    )
    launch("turn_queries", q.device, _CALL, fields, processors(q.device))
    return codes, folded
