"""Ranks on the GPUs of one host.

Small sums are a kernel of our own; otherwise NCCL moves data, and they are summed here. All sums
are float32 and in the order of ranks, inside CUDA graphs, too.
"""

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from jit_kernels.ordered_sum import ordered_sum
from jit_kernels.push_reduce import PushReduce, most_bytes, why_no_peers
from layers.parallel.ranks import Deal, Dealt, OneRank, Undealt, all_have_some
from layers.parallel.shares import Shares

__all__ = ["CudaRanks"]

logger = logging.getLogger("umbra.rank")


class CudaRanks:
    """This rank's GPU among the others; a `Ranks`."""

    def __init__(self, shares: Shares, device: torch.device, *, limit_s: float) -> None:
        """Take this rank's place in the group that `torch.distributed` was initialised with.

        limit_s  how long a small sum waits for other ranks; 0: for ever
        """
        self.shares, self._device = shares, device
        self._push: PushReduce | None = None
        reason = why_no_peers(device, shares.world, device.index - shares.rank)
        if reason is None:
            self._push = PushReduce(
                shares.rank, shares.world, device, exchange=self._exchanged, limit_s=limit_s
            )
        else:
            logger.warning("Sums over ranks go through NCCL: %s", reason)

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Ranks`."""
        if self._push is not None and self._push.takes(partial):
            return self._push(partial)
        world, flat = self.shares.world, partial.reshape(-1)
        if world == 2 or flat.shape[0] % world:
            return ordered_sum(self._all(partial))
        # Each rank sums a part for all: half of the bytes of the other way for four ranks.
        parts = torch.empty_like(flat)
        dist.all_to_all_single(parts, flat)
        return self._all(ordered_sum(parts.view(world, -1))).view(partial.shape)

    def deal(self, tokens: int, width: int) -> Deal:
        """Return that each rank mixes a share where sums in one launch are not faster."""
        world = self.shares.world
        if self.shares.attention == "data":
            return Undealt(OneRank())
        few = tokens * width * torch.bfloat16.itemsize <= most_bytes(world)
        if few or not all_have_some(tokens, world):
            return Undealt(self)
        return Dealt(self, tokens)

    def swapped(self, rows: Tensor, size: int) -> Tensor:
        """Return what others have of this rank's rows; see `Moves`."""
        rank, world = self.shares.rank, self.shares.world
        sent = [size] * (world - 1) + [len(rows) - size * (world - 1)]
        parts = rows.new_empty((world, sent[rank], *rows.shape[1:]))
        dist.all_to_all_single(parts.flatten(0, 1), rows.contiguous(), [sent[rank]] * world, sent)
        return parts

    def stacked(self, rows: Tensor) -> Tensor:
        """Return all rows; see `Moves`."""
        return self._all(rows).flatten(0, 1)

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts side by side; see `Ranks`."""
        return self._all(part).transpose(0, 1).flatten(1)

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all rows; see `Ranks`."""
        if min(counts) == max(counts):
            return self.stacked(rows)
        every = rows.new_empty((sum(counts), *rows.shape[1:]))
        dist.all_to_all([*every.split([*counts])], [rows.contiguous()] * self.shares.world)
        return every

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sums of this rank's rows; see `Ranks`."""
        rank, world = self.shares.rank, self.shares.world
        if self._push is not None and self._push.takes(partial):
            first = sum(counts[:rank])
            return self._push(partial)[first : first + counts[rank]]
        parts = partial.new_empty((world, counts[rank], *partial.shape[1:]))
        sent = [*counts]
        dist.all_to_all_single(
            parts.flatten(0, 1), partial.contiguous(), [counts[rank]] * world, sent
        )
        return ordered_sum(parts)

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return what others have for this rank; see `Ranks`."""
        parts = rows.new_empty((sum(taken), *rows.shape[1:]))
        dist.all_to_all_single(parts, rows.contiguous(), [*taken], [*given])
        return parts

    def least(self, value: int) -> int:
        """Return the least; see `Ranks`."""
        return int(self._all(torch.tensor(value, device=self._device)).min())

    def _all(self, part: Tensor) -> Tensor:
        """Return what all ranks give, [world, ...]."""
        part = part.contiguous()
        parts = part.new_empty((self.shares.world, *part.shape))
        dist.all_gather_into_tensor(parts, part)
        return parts

    def _exchanged(self, told: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(told), dtype=torch.uint8).to(self._device)
        return [bytes(row) for row in self._all(mine).cpu().numpy()]
