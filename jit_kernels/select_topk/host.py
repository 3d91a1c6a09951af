"""Top-k in C."""

import torch

from jit_kernels.host import function, raise_fault, rows_of

_select_topk = function("select_topk", "pippiii")


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    scores, visible = rows_of(scores), visible.to(torch.int64).contiguous()
    rows, slots = scores.shape
    out = torch.empty((rows, min(top_k, slots)), dtype=torch.int64)
    pointers = (scores.data_ptr(), scores.stride(0), visible.data_ptr(), out.data_ptr())
    raise_fault(_select_topk(*pointers, rows, slots, out.shape[1]))
    return out
