"""The likeliest token in plain torch; runs on any device."""

import torch


def likeliest(logits: torch.Tensor, out: torch.Tensor) -> None:
    """Write ids; see `jit_kernels.likeliest.likeliest`."""
    out.copy_(logits.argmax(-1).masked_fill(~logits.isfinite().all(-1), -1))
