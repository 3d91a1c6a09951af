"""What rows take of windows and states, where a model has both, one or none of them."""

from collections import Counter

import pytest

from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.tree.handles import Point
from mem_cache.tree.radix import ShadowRadixCache
from mem_cache.units import Units
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.row_units import Claims, Copies, RowUnits

WINDOW = 8
POINT = Point(1, 9, 6, (3, 4), False)


class Made:
    """Units of rows of a table of three."""

    def __init__(self, *, window: int = WINDOW, states: int = 6, live: int = 0) -> None:
        spec = TreeSpec(16, 4, window=window, has_state=states > 0)
        swa = 12 if window else 0
        self.units = Units(PoolSizes(4, swa, states, live))
        cache = ShadowRadixCache(
            spec, full=self.units.full, swa=self.units.swa, states=self.units.states
        )
        self.table, self.copies = RequestTable(spec, rows=3, max_pages=4), Copies()
        self.rows = RowUnits(spec, self.units, self.table, Evictions(cache))

    def start(self, point: Point | None = None) -> int:
        row = self.table.claim()
        self.rows.start(row, point, self.copies)
        return row


@pytest.mark.parametrize(
    ("made", "claims"),
    [
        (Made(), Claims((2 + 1 + 2) * 2, 4)),
        (Made(states=0), Claims((2 + 1 + 2) * 2, 0)),
        (Made(window=0), Claims(0, 4)),
        (Made(window=0, states=0), Claims(0, 0)),
        (Made(live=3), Claims((2 + 1 + 2) * 2, 1)),
    ],
)
def test_rows_claim_what_the_model_has(made: Made, claims: Claims) -> None:
    assert made.rows.claims(2, 1, new=1) == claims


def test_a_row_copies_window_and_state_of_its_point() -> None:
    made = Made()

    row = made.start(POINT)

    own = made.table.window[row].tolist()
    assert made.copies.swa == [(3, own[0]), (4, own[1])]
    assert made.copies.states == [(6, int(made.table.state[row]), 9)]
    assert (made.rows.swa_held, made.rows.states_held) == (2, 1)


def test_a_window_grows_with_its_row_and_no_further() -> None:
    made = Made()
    row = made.start()

    for end, pages in ((1, 1), (4, 1), (5, 2), (100, 2)):
        made.rows.grow(row, end)
        assert made.rows.swa_held == pages


def test_a_state_of_one_form_is_lent_as_it_is() -> None:
    made = Made()
    row = made.start()
    made.rows.grow(row, 9)

    lent = made.rows.lend(row, 9, made.copies)

    assert lent is not None
    assert lent == (made.table.window[row].tolist(), int(made.table.state[row]))
    assert made.copies.states == []
    made.rows.settle(lent[1])
    assert made.units.states.references(lent[1]) == 1


def test_a_state_of_the_rows_form_is_packed_into_one_of_a_point() -> None:
    made = Made(live=3)
    row = made.start()

    lent = made.rows.lend(row, 7, made.copies)

    assert lent is not None
    assert lent[1] > 3
    assert made.copies.states == [(row + 1, lent[1], 7)]
    made.rows.settle(lent[1])
    assert made.units.states.references(lent[1]) == 0
    made.units.states.alloc(3)
    assert made.rows.lend(row, 8, made.copies) is None


@pytest.mark.parametrize(
    "made", [Made(), Made(states=0), Made(window=0), Made(window=0, states=0), Made(live=3)]
)
def test_what_a_row_takes_is_counted_and_given_back(made: Made) -> None:
    row = made.start()
    made.rows.grow(row, 20)
    swa, states = Counter[int](), Counter[int]()

    made.rows.count_owned(states)
    made.rows.count(row, swa, states)
    made.units.swa.check(swa)
    made.units.states.check(states)

    made.rows.give_back(row)
    made.units.swa.check(Counter())
    made.units.states.check(Counter(range(1, made.units.live_states + 1)))
