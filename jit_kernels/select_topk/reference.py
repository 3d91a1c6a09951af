"""Top-k in plain torch, by a stable sort."""

import torch

from jit_kernels.translate_blocks import translate_blocks


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    slots = scores.shape[1]
    hidden = torch.arange(slots, device=scores.device) >= visible.unsqueeze(1)
    masked = scores.masked_fill(hidden, -torch.inf)
    best = torch.sort(masked, dim=1, descending=True, stable=True)[1][:, :top_k]
    best = best.masked_fill(best >= visible.unsqueeze(1), slots)
    best = best.sort(dim=1)[0]
    return best.masked_fill_(best == slots, -1)


def select_slots(
    scores: torch.Tensor,
    visible: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    top_k: int,
    page_blocks: int,
) -> None:
    """Write slots; see `jit_kernels.select_topk.select_slots`."""
    blocks = select_topk(scores, visible, top_k)
    translate_blocks(blocks, page_table, out, page_blocks=page_blocks)
