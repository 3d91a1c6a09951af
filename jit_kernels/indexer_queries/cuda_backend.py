"""Indexer queries in CUDA C++: heads of 128 channels, 64 of which turn; others go through Triton.

The transform is additions in float32: seven levels, five of them in the registers of a thread.
"""

import torch

from jit_kernels.cuda_rows import call, is_aligned, is_bf16
from jit_kernels.indexer_queries import triton_backend
from jit_kernels.indexer_queries.reference import padded_heads

_WIDTH, _TURNED = 128, 64


def indexer_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, transform and round; see `jit_kernels.indexer_queries.indexer_queries`."""
    tokens, heads, width = q.shape
    rotation = rotation.contiguous()
    usual = (width, rotation.shape[2]) == (_WIDTH, _TURNED)
    if not tokens or not usual or not is_aligned(q) or not is_aligned(rotation):
        return triton_backend.indexer_queries(q, weights, rotation)
    padded = padded_heads(heads)
    codes = torch.empty((tokens, padded, width), dtype=torch.float8_e4m3fn, device=q.device)
    folded = torch.empty((tokens, padded), dtype=torch.float32, device=q.device)
    call(
        "make_queries",
        q.device,
        *(q.data_ptr(), is_bf16(q), q.stride(0)),
        *(weights.data_ptr(), is_bf16(weights), weights.stride(0), rotation.data_ptr()),
        *(codes.data_ptr(), folded.data_ptr(), tokens, heads, padded, (heads * width) ** -0.5),
    )
    return codes, folded
