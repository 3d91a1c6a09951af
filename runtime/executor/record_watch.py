"""Whether records on the device change only where a step may write: `--check-every-step`.

Of each unit that a step may write a digest is kept. Before a step everything that it reads, and a
few more units in turn, must still have theirs. A kernel that writes out of bounds, a page with two
owners, a copy to the wrong place: each is found no later than the damaged unit is read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from layers.models.unit_views import UnitView, UnitViews
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Copies, StepPlan, UnitTransfer

__all__ = ["RecordWatch", "Unwatched", "Watch"]

# Units of each pool that are verified in each step though it may not read them.
_IN_TURN = 8
_KINDS = ("full page", "SWA page", "state")
# Units that are read at once: what they hold is copied, on a device whose memory is given away.
_PIECE = 16


class Watch(Protocol):
    """What a runner tells of a step, in this order: `copied`, `reads`, the forward pass, `wrote`.

    Each raises IntegrityError, naming a unit that is not as it was left.
    """

    def copied(self, copies: Copies, run: Callable[[], None]) -> None:
        """Run copies: sources must be as they were left, destinations are new."""
        ...

    def received(self, transfers: Iterable[UnitTransfer], rank: int) -> None:
        """Note what another rank has written."""
        ...

    def reads(self, rows: PlanRows, tables: LineTables) -> None:
        """Verify what rows read; their starts are known, and the tables up to date."""
        ...

    def wrote(self, plan: StepPlan, rows: PlanRows, tables: LineTables) -> None:
        """Keep the digests of what rows have written."""
        ...


class Unwatched:
    """Verifies nothing."""

    def copied(self, copies: Copies, run: Callable[[], None]) -> None:
        """Run copies."""
        run()

    def received(self, transfers: Iterable[UnitTransfer], rank: int) -> None:
        """Note nothing."""

    def reads(self, rows: PlanRows, tables: LineTables) -> None:
        """Verify nothing."""

    def wrote(self, plan: StepPlan, rows: PlanRows, tables: LineTables) -> None:
        """Keep nothing."""


class RecordWatch:
    """Digests of the units of one device's pools; it reads pools, and writes nothing.

    See `Watch`. On a device that runs ahead of the host each part waits for the steps before it.
    """

    def __init__(self, views: UnitViews, tree: TreeSpec) -> None:
        self._page_size = tree.page_size
        self._pools = [
            _Pool(kind, [view for view in of if view.bytes.numel()])
            for kind, of in zip(_KINDS, (views.pages, views.swa_pages, views.states), strict=True)
        ]

    def copied(self, copies: Copies, run: Callable[[], None]) -> None:
        """Run copies: sources must be as they were left, destinations are new."""
        told = [
            *zip(self._pools, (copies.pages, copies.windows, copies.states), (2, 2, 3), strict=True)
        ]
        pairs = [(pool, unpacked(data, INT32, -1, width)) for pool, data, width in told if data]
        for pool, rows in pairs:
            # A destination may be the source of a later copy.
            pool.verify(set(rows[:, 0].tolist()) - set(rows[:, 1].tolist()))
        run()
        for pool, rows in pairs:
            pool.record(rows[:, 1].tolist())

    def received(self, transfers: Iterable[UnitTransfer], rank: int) -> None:
        """Note what another rank has written."""
        for told in transfers:
            if told.taker == rank:
                for pool, data in zip(
                    self._pools, (told.pages, told.windows, told.states), strict=True
                ):
                    if data:
                        pool.record(unpacked(data, INT32, -1, 2)[:, 1].tolist())

    def reads(self, rows: PlanRows, tables: LineTables) -> None:
        """Verify what rows read; their starts are known, and the tables up to date."""
        full, swa, states = self._pools
        full.verify(
            page
            for line, start in zip(rows.line.tolist(), rows.start.tolist(), strict=True)
            for page in tables.pages[line, : -(-start // self._page_size)].tolist()
        )
        swa.verify(tables.window[rows.line].ravel().tolist())
        states.verify(tables.state[rows.line].tolist())
        for pool in self._pools:
            pool.verify_some(_IN_TURN)

    def wrote(self, plan: StepPlan, rows: PlanRows, tables: LineTables) -> None:
        """Keep the digests of what rows have written."""
        full, swa, states = self._pools
        first = np.maximum(rows.start, np.minimum(rows.write_from, rows.end - 1)) // self._page_size
        last = (rows.end - 1) // self._page_size
        full.record(
            page
            for line, begin, end in zip(
                rows.line.tolist(), first.tolist(), last.tolist(), strict=True
            )
            for page in tables.pages[line, begin : end + 1].tolist()
        )
        saved = unpacked(plan.saves.window, INT32) if plan.saves.window else np.empty(0, np.int32)
        swa.record([*tables.window[rows.line].ravel().tolist(), *saved.tolist()])
        kept = unpacked(plan.saves.state, INT32) if plan.saves.state else np.empty(0, np.int32)
        states.record([*tables.state[rows.line].tolist(), *kept.tolist()])


class _Pool:
    """The digests of one kind of unit; unit 0 is a dummy, which anything may be in."""

    def __init__(self, kind: str, views: Sequence[UnitView]) -> None:
        self._kind = kind
        self._views = views
        self._first = max([1, *(view.first for view in views)])
        self._digests: dict[int, int] = {}
        self._turn: list[int] = []

    def record(self, units: Iterable[int]) -> None:
        """Keep the digests of units that were written."""
        wanted = self._watched(units)
        self._digests.update(zip(wanted, self._digest(wanted), strict=True))

    def verify(self, units: Iterable[int]) -> None:
        """Raise IntegrityError for a unit that has changed since it was written."""
        known = [unit for unit in self._watched(units) if unit in self._digests]
        for unit, digest in zip(known, self._digest(known), strict=True):
            if digest != self._digests[unit]:
                raise IntegrityError(
                    f"{self._kind} {unit} on the device was written by no step that may write it"
                )

    def verify_some(self, count: int) -> None:
        """Verify so many units that are in no step's way, each in its turn."""
        if not self._turn:
            self._turn = sorted(self._digests, reverse=True)
        self.verify([self._turn.pop() for _ in range(min(count, len(self._turn)))])

    def _watched(self, units: Iterable[int]) -> list[int]:
        return sorted({unit for unit in units if unit >= self._first}) if self._views else []

    def _digest(self, units: Sequence[int]) -> list[int]:
        told: list[int] = []
        for first in range(0, len(units), _PIECE):
            some = units[first : first + _PIECE]
            told += torch.stack([_sums(view, some) for view in self._views]).sum(0).tolist()
        return told


def _sums(view: UnitView, units: Sequence[int]) -> Tensor:
    """Return a digest of the bytes of each unit, [k] int64; a changed byte changes it."""
    data = view.read(units).view(view.bytes.shape[0], len(units), -1)
    pad = -data.shape[2] % 8
    words = torch.nn.functional.pad(data, (0, pad)).view(torch.int64)
    # Odd factors: the product of a word that differs differs, in all 64 bits.
    factors = torch.arange(words.shape[0] * words.shape[2], device=words.device)
    factors = (factors * 0x5851F42D4C957F2D + 1) * 2 + 1
    return (words * factors.view(words.shape[0], 1, -1)).sum((0, 2))
