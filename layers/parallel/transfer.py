"""Copies units between the pools of ranks, in one exchange for all pairs of ranks."""

from collections.abc import Sequence

import torch

from layers.models.unit_views import UnitViews, read_units, unit_bytes, write_units
from layers.parallel.ranks import Ranks
from mem_cache.transfer import Transfer

__all__ = ["transfer_units"]


def transfer_units(ranks: Ranks, views: UnitViews, transfers: Sequence[Transfer]) -> None:
    """Copy units between ranks, all at once; all ranks call it with the same transfers.

    views  of this rank's pools; those of other ranks have the same layout

    All sources are read before any target is written. On a GPU the host does not wait.
    """
    rank, world = ranks.shares.rank, ranks.shares.world
    given = [_between(transfers, rank, other) for other in range(world)]
    taken = [_between(transfers, other, rank) for other in range(world)]
    pieces = [piece for some in given for t in some for piece in read_units(views, t.source)]
    received = ranks.traded(
        torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8, device=_device(views)),
        [sum(unit_bytes(views, t.source) for t in some) for some in given],
        [sum(unit_bytes(views, t.target) for t in some) for some in taken],
    )
    first = 0
    for transfer in (t for some in taken for t in some):
        size = unit_bytes(views, transfer.target)
        write_units(views, transfer.target, received[first : first + size])
        first += size


def _between(transfers: Sequence[Transfer], giver: int, taker: int) -> list[Transfer]:
    return [one for one in transfers if (one.giver, one.taker) == (giver, taker)]


def _device(views: UnitViews) -> torch.device:
    return views.pages[0].bytes.device
