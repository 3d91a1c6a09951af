"""Scores of chunks by DeepGEMM, which writes a token's keys from its first column on.

Source: DeepGEMM 0.1.4, `sm90_fp8_mqa_logits` with `max_seqlen_k`.
"""

from collections.abc import Sequence

import torch
from deep_gemm import fp8_mqa_logits


def chunk_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """Score blocks; see `jit_kernels.chunk_logits.chunk_logits`."""
    if not codes.shape[0]:
        return torch.empty((q.shape[0], columns), dtype=torch.float32, device=q.device)
    return fp8_mqa_logits(
        q,
        (codes, scales),
        weights,
        start.contiguous(),
        end.contiguous(),
        clean_logits=False,
        max_seqlen_k=columns,
    )


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's call for so many tokens of one key; see `jit_kernels.vendor_calls`.

    sizes  heads and channels of a query
    """
    heads, width = sizes
    q = torch.empty((rows, heads, width), dtype=torch.float8_e4m3fn, device=device)
    weights = torch.empty((rows, heads), device=device)
    codes = torch.empty((1, width), dtype=torch.float8_e4m3fn, device=device)
    start = torch.zeros(rows, dtype=torch.int32, device=device)
    chunk_logits(q, weights, codes, torch.empty(1, device=device), start, start + 1, 1)
