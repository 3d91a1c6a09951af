"""Sum of all ranks' numbers in plain torch."""

from collections.abc import Sequence

import torch


def push_reduce(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the float32 sum of what ranks give, in their order, in the dtype of the parts."""
    total = parts[0].to(torch.float32)
    for part in parts[1:]:
        total = total + part.to(torch.float32)
    return total.to(parts[0].dtype)
