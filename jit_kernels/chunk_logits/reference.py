"""Scores of chunks in plain torch, token by token."""

import torch

from jit_kernels.paged_logits.reference import scores_of
from jit_kernels.paged_rows import PageLayout


def gather_key_pages(
    pages: torch.Tensor, named: torch.Tensor, layout: PageLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy pages; see `jit_kernels.chunk_logits.gather_key_pages`."""
    found = pages[named.to(torch.int64)]
    size = layout.page_rows * layout.data_bytes
    codes = found[:, :size].reshape(-1, layout.data_bytes).view(torch.float8_e4m3fn)
    scales = found[:, size:].contiguous().view(torch.float32)
    return codes, scales.flatten()


def chunk_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """Score blocks; see `jit_kernels.chunk_logits.chunk_logits`. The rest becomes -inf."""
    keys = codes.to(torch.float32) * scales.unsqueeze(1)
    scores = torch.full((q.shape[0], columns), -torch.inf, device=q.device)
    for token, (first, past) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        scores[token, : past - first] = scores_of(q[token], weights[token], keys[first:past])
    return scores
