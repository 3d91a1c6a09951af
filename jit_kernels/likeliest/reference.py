"""The likeliest token in plain torch; runs on any device."""

import torch


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return ids; see `jit_kernels.likeliest.likeliest`."""
    return logits.argmax(-1).masked_fill(~logits.isfinite().all(-1), -1)
