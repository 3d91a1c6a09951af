"""What pools hold may change only where a step, a copy or another rank may write it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from layers.models.unit_views import UnitView, UnitViews
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows
from runtime.executor.record_watch import RecordWatch
from runtime.wire.arrays import INT32, INT64, packed
from runtime.wire.step import (
    VERSION,
    Copies,
    Rows,
    Saves,
    StepPlan,
    TableChanges,
    UnitTransfer,
)

PAGE = 128
SWA_PAGE = 64
UNITS = 20


class Rig:
    """Pools of three kinds, a line with pages 3, 4, 5, window pages from 7 on, and state 2."""

    def __init__(self) -> None:
        self.pages, self.swa, self.states = (
            torch.randint(0, 255, (2, UNITS, 24), dtype=torch.uint8) for _ in range(3)
        )
        views = UnitViews(*([UnitView.of(pool)] for pool in (self.pages, self.swa, self.states)))
        self.tree = TreeSpec(page_size=PAGE, swa_page_size=SWA_PAGE)
        self.tables = LineTables(2, pages=4, window_pages=self.tree.window_pages)
        self.tables.pages[0, :3] = (3, 4, 5)
        self.tables.window[0] = np.arange(7, 7 + self.tree.window_pages)
        self.tables.state[0] = 2
        self.watch = RecordWatch(views, self.tree)

    def step(self, start: int, count: int, *, saves: Saves | None = None) -> None:
        """Run a step of the line, which writes what it may."""
        line, begin = packed([0], INT32), packed([start], INT64)
        told = Rows(line=line, start=begin, count=packed([count], INT32), ids=bytes(4 * count))
        plan = StepPlan(VERSION, 1, TableChanges(), [], Copies(), told, saves or Saves(), b"", [])
        rows = PlanRows.of(told)
        self.watch.reads(rows, self.tables)
        for page in self.tables.pages[0, start // PAGE : (start + count - 1) // PAGE + 1].tolist():
            self.pages[:, page] += 1
        self.swa[:, 7] += 1
        self.states[:, 2] += 1
        self.watch.wrote(plan, rows, self.tables)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_steps_that_write_their_own_pages_pass(rig: Rig) -> None:
    rig.step(0, 300)
    for position in range(300, 310):
        rig.step(position, 1)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda rig: rig.pages[1, 3, 5:6].add_(1), "full page 3"),
        (lambda rig: rig.pages[:, 4].copy_(rig.pages[:, 4].flip(1)), "full page 4"),
        (lambda rig: rig.pages[:, 4].copy_(rig.pages[:, 4].flip(0)), "full page 4"),
        (lambda rig: rig.swa[0, 8, 23:].add_(128), "SWA page 8"),
        (lambda rig: rig.states[0, 2, 0:1].sub_(1), "state 2"),
    ],
    ids=["a byte", "places", "layers", "window", "state"],
)
def test_what_was_written_by_nobody_is_found_when_it_is_read(
    rig: Rig, damage: Callable[[Rig], object], named: str
) -> None:
    rig.step(0, 300)
    damage(rig)

    with pytest.raises(IntegrityError, match=named):
        rig.step(300, 1)


def test_a_unit_that_no_row_reads_is_found_in_its_turn(rig: Rig) -> None:
    rig.watch.received([UnitTransfer(1, 0, pages=packed([1, 15], INT32))], 0)
    rig.step(0, 1)
    rig.pages[0, 15, 3] += 1

    with pytest.raises(IntegrityError, match="full page 15"):
        rig.step(1, 1)


def test_what_other_ranks_are_given_is_theirs(rig: Rig) -> None:
    rig.watch.received([UnitTransfer(0, 1, pages=packed([1, 15], INT32))], 0)
    rig.pages[0, 15, 3] += 1
    rig.step(0, 300)
    for position in range(300, 306):
        rig.step(position, 1)


def test_copies_are_followed_and_their_sources_verified(rig: Rig) -> None:
    rig.step(0, 300)
    # A chain: 4 to 9, then 9 to 10.
    copies = Copies(pages=packed([4, 9, 9, 10], INT32))

    def run() -> None:
        rig.pages[:, 9] = rig.pages[:, 4]
        rig.pages[:, 10] = rig.pages[:, 9]

    rig.watch.copied(copies, run)
    rig.pages[0, 10, 0] += 1
    with pytest.raises(IntegrityError, match="full page 10"):
        rig.watch.copied(Copies(pages=packed([10, 11], INT32)), lambda: None)


def test_saves_beside_the_chunks_end_are_followed(rig: Rig) -> None:
    window = np.arange(12, 12 + rig.tree.window_pages)
    saves = Saves(
        row=packed([0], INT32),
        position=packed([200], INT64),
        state=packed([6], INT32),
        window=packed(window, INT32),
    )
    rig.step(0, 300, saves=saves)
    rig.states[0, 6, 0] += 1

    with pytest.raises(IntegrityError, match="state 6"):
        rig.watch.copied(Copies(states=packed([6, 9, 200], INT32)), lambda: None)


def test_dummies_may_hold_anything(rig: Rig) -> None:
    rig.tables.pages[0, :3] = 0
    rig.step(0, 300)
    rig.pages[:, 0] += 1
    rig.step(300, 1)
