"""What one step may copy between replicas, and what goes on without it."""

from dataclasses import replace
from itertools import chain

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from tests.runtime.scheduler.test_loop import prompt_of
from tests.runtime.scheduler.test_prefix_copies import AMPLE, FEW, HISTORY, PAGES_ALONE, Spread
from tests.testing.scheduler_rig import SMALL
from tests.testing.token_exchange import pairs_of
from tests.testing.token_runner import expected_output


def test_where_rows_may_need_the_units_of_a_point_its_prefix_is_computed_again() -> None:
    """Two rows, the new one and the point: one state more than there are beside a row's."""
    rig = Spread(PoolSizes(full_pages=200, swa_pages=200, states=4))
    rig.ask_at(0, HISTORY)
    rows = [rig.send_to(1, prompt_of(10 + k, 10), 90) for k in range(2)]
    rig.turn_until(lambda: len(rig.replicas[1].sets.decoding) == 2)
    rig.ask_at(1, [*HISTORY, 3])

    assert all(len(rig.tokens(row)) == 90 for row in rows)
    assert not rig.transfers
    assert rig.counted == (0, 100)
    rig.assert_nothing_held()
    rig.assert_conserved()


def test_who_gets_a_prefix_in_pieces_keeps_its_row_from_those_of_less_priority() -> None:
    rig = Spread(AMPLE, copies=FEW, rows=1)
    rig.ask_at(0, HISTORY)
    rig.send_to(0, [5], 60)  # else the other one goes there
    high, low = rig.send([*HISTORY, 1], 3, priority=1), rig.send([9, 9], 3)
    rig.wanted |= {high: 1, low: 1}
    rig.turn_until(lambda: bool(rig.tokens(high)))

    assert not rig.tokens(low)
    rig.run()
    assert len(rig.tokens(low)) == 3
    rig.assert_conserved()


def test_a_point_without_pages_waits_for_a_step_with_room_for_it() -> None:
    rig = Spread(AMPLE, 3, copies=FEW)
    other = prompt_of(5, 100)
    for place, text in ((0, HISTORY), (2, other), (1, other)):
        rig.ask_at(place, text)
    rig.replicas[2].residency.cache.evict_swa(states=60)
    steps = len(rig.executor.exchanges)
    requests = [rig.send_to(2, [*text, 1], 3) for text in (HISTORY, other)]
    rig.run()

    sizes = [
        [(len(pairs_of(one.pages).T), len(pairs_of(one.states).T)) for one in exchange.transfers]
        for exchange in rig.executor.exchanges[steps:]
    ]
    assert sizes[:4] == [[(3, 0)]] * 4
    assert [*chain(*sizes[4:])] == [(1, 1), (0, 1)]
    for request, text in zip(requests, (HISTORY, other), strict=True):
        assert rig.tokens(request) == expected_output([*text, 1], 3, 50)


@pytest.mark.parametrize(("step_bytes", "steps"), [(137, 2), (138, 1)])
def test_what_just_fits_into_a_step_comes_at_once(step_bytes: int, steps: int) -> None:
    rig = Spread(AMPLE, copies=replace(FEW, step_bytes=step_bytes))
    rig.ask_at(0, HISTORY)
    rig.ask_at(1, [*HISTORY, 1])

    assert len(rig.transfers) == steps


@pytest.mark.parametrize("spec", [SMALL, PAGES_ALONE], ids=["windows and states", "pages alone"])
def test_what_a_step_brings_is_not_copied_on_in_it(spec: TreeSpec) -> None:
    rig = Spread(AMPLE, 3, spec=spec)
    rig.ask_at(2, HISTORY)
    requests = [rig.send_to(place, [*HISTORY, place]) for place in (0, 1)]
    rig.run()

    for place, request in enumerate(requests):
        assert rig.tokens(request) == expected_output([*HISTORY, place], 5, 50)
    assert [(one.giver, one.taker) for one in rig.transfers] == [(2, 0), (2, 1)]
    rig.assert_conserved()
