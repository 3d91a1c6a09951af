"""Masked logits in plain torch; runs on any device."""

import torch


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Forbid tokens in place; see `jit_kernels.mask_logits.mask_logits`."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = masks.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(1).bool().flatten(1)
    kept = logits.index_select(0, rows)
    kept.masked_fill_(~allowed[:, : logits.shape[1]], -torch.inf)
    logits.index_copy_(0, rows, kept)
