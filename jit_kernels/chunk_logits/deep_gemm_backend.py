"""Scores of chunks by DeepGEMM, which writes a token's keys from its first column on.

Source: DeepGEMM 0.1.4, `sm90_fp8_mqa_logits` with `max_seqlen_k`.
"""

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
