"""Ranks on the GPUs of one host.

Data are moved by NCCL, and summed here: in float32, in the order of ranks. Inside CUDA graphs, too.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from layers.parallel.shares import Shares

__all__ = ["CudaRanks"]


class CudaRanks:
    """This rank's GPU among the others; a `Ranks`."""

    def __init__(self, shares: Shares, device: torch.device) -> None:
        """Take this rank's place in the group that `torch.distributed` was initialised with."""
        self.shares, self._device = shares, device

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Ranks`."""
        parts = self._all(partial)
        return parts.sum(0, dtype=torch.float32).to(partial.dtype)

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts side by side; see `Ranks`."""
        return self._all(part).transpose(0, 1).flatten(1)

    def least(self, value: int) -> int:
        """Return the least; see `Ranks`."""
        return int(self._all(torch.tensor(value, device=self._device)).min())

    def _all(self, part: Tensor) -> Tensor:
        """Return what all ranks give, [world, ...]."""
        part = part.contiguous()
        parts = part.new_empty((self.shares.world, *part.shape))
        dist.all_gather_into_tensor(parts, part)
        return parts
