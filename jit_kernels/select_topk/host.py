"""Top-k in C."""

import torch

from jit_kernels.host import function, raise_fault, rows_of
from jit_kernels.translate_blocks import translate_blocks

_select_topk = function("select_topk", "pippiii")


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    scores, visible = rows_of(scores), visible.to(torch.int64).contiguous()
    rows, slots = scores.shape
    out = torch.empty((rows, min(top_k, slots)), dtype=torch.int64)
    pointers = (scores.data_ptr(), scores.stride(0), visible.data_ptr(), out.data_ptr())
    raise_fault(_select_topk(*pointers, rows, slots, out.shape[1]))
    return out


def select_slots(
    scores: torch.Tensor,
    visible: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    top_k: int,
    page_blocks: int,
    next_settled: bool = False,
) -> None:
    """Write slots; see `jit_kernels.select_topk.select_slots`."""
    blocks = select_topk(scores, visible, top_k)
    translate_blocks(blocks, page_table, out, page_blocks=page_blocks)
