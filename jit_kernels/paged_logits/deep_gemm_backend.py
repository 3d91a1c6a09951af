"""Scores of decoding rows by DeepGEMM, which deals tiles of 256 keys evenly to all processors.

Its schedule is made by a launch of its own from the rows' lengths, and is shared through the plan.
Where no row has a block, its schedule names a row that is not there: so every row has at least one,
at whose score nobody looks. A page that is none reads as zeros. Source: DeepGEMM 0.1.4,
`sm90_fp8_paged_mqa_logits` and its `sm90_paged_mqa_logits_metadata`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from deep_gemm import fp8_paged_mqa_logits, get_num_sms, get_paged_mqa_logits_metadata

from jit_kernels.paged_logits import PAGE_KEYS
from jit_kernels.paged_rows import PageLayout

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
    """Score blocks; see `jit_kernels.paged_logits.paged_logits`."""
    held = {} if plan is None else plan.held
    if not held:
        held["lengths"] = blocks.clamp(min=1).unsqueeze(1)
        held["schedule"] = get_paged_mqa_logits_metadata(
            held["lengths"], layout.page_rows, get_num_sms()
        )
    return fp8_paged_mqa_logits(
        q.unsqueeze(1),
        pages.view(-1, layout.page_rows, 1, layout.row_bytes),
        weights,
        held["lengths"],
        page_table,
        held["schedule"],
        columns,
        clean_logits=False,
    )


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's calls for so many rows of one block; see `jit_kernels.vendor_calls`.

    sizes  heads and channels of a query
    """
    heads, width = sizes
    layout = PageLayout(PAGE_KEYS, width, 4, PAGE_KEYS * (width + 4))
    q = torch.empty((rows, heads, width), dtype=torch.float8_e4m3fn, device=device)
    weights = torch.empty((rows, heads), device=device)
    pages = torch.empty((1, layout.page_bytes), dtype=torch.uint8, device=device)
    page_table = torch.zeros((rows, 1), dtype=torch.int32, device=device)
    blocks = torch.ones(rows, dtype=torch.int32, device=device)
    paged_logits(q, weights, pages, layout, page_table, blocks, 1, None)
