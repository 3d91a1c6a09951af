"""Sum of all ranks' numbers in plain torch, as if one had them all."""

from collections.abc import Sequence

import torch

from jit_kernels.ordered_sum import ordered_sum


def push_reduce(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the float32 sum of what ranks give, in their order, in the dtype of the parts."""
    return ordered_sum(torch.stack(list(parts)))
