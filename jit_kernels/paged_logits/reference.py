"""Scores of decoding rows in plain torch, row by row."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.indexer_keys.reference import decode_keys
from jit_kernels.paged_logits import PAGE_KEYS
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import gather_rows

if TYPE_CHECKING:
    from jit_kernels.paged_logits import LogitsPlan


def paged_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    page_table: torch.Tensor,
    blocks: torch.Tensor,
    columns: int,
    plan: "LogitsPlan | None",
) -> torch.Tensor:
    """Score blocks; see `jit_kernels.paged_logits.paged_logits`. The rest becomes -inf."""
    del plan
    scores = torch.full((q.shape[0], columns), -torch.inf, device=q.device)
    for row, count in enumerate(blocks.tolist()):
        block = torch.arange(count, device=q.device)
        page = page_table[row, block // PAGE_KEYS].to(torch.int64)
        found = gather_rows(pages, page * PAGE_KEYS + block % PAGE_KEYS, layout)
        scores[row, :count] = scores_of(q[row], weights[row], decode_keys(found, "fp8"))
    return scores


def scores_of(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return the scores [K] of one token's queries [H, C] with keys [K, C], float32."""
    return (q.to(torch.float32) @ keys.T).clamp(min=0.0).T @ weights
