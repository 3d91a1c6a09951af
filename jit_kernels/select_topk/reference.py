"""Top-k in plain torch, by a stable sort."""

import torch


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    slots = scores.shape[1]
    hidden = torch.arange(slots, device=scores.device) >= visible.unsqueeze(1)
    masked = scores.masked_fill(hidden, -torch.inf)
    best = torch.sort(masked, dim=1, descending=True, stable=True)[1][:, :top_k]
    best = best.masked_fill(best >= visible.unsqueeze(1), slots)
    best = best.sort(dim=1)[0]
    return best.masked_fill_(best == slots, -1)
