"""Rows in the cache: what is shared, what is copied, what is written, what is given back."""

import random

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.units import Units
from runtime.scheduler.kv_event_wire import Cleared, Event
from runtime.scheduler.residency import Residency
from runtime.scheduler.resume_policy import ResumePolicy
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
PROMPT = random.Random(2).choices(range(40), k=60)


def test_after_a_tombstone_match_shared_pages_are_read_and_not_written() -> None:
    rig = Rig(AMPLE, chunk=10)
    rig.send(PROMPT[:44], 2)
    rig.run()
    rig.residency.cache.evict_swa(states=AMPLE.states)
    assert rig.residency.cache.points == 0
    pages = rig.residency.cache.tree_pages

    prompt = [*PROMPT[:43], 47]
    request = rig.send(prompt, 6)
    rig.scheduler.turn()
    state = rig.request(request)
    assert (state.matched, state.holding.write_from, state.holding.shared_pages) == (0, 40, 5)
    assert rig.plans[-1].write_from.tolist() == [40]
    assert state.holding.num_pages == 6

    rig.run()
    assert rig.cached(request) == 0
    assert rig.tokens(request) == expected_output(prompt, 6, 50)
    assert rig.residency.cache.tree_pages <= pages + 2
    rig.assert_conserved()


@pytest.mark.parametrize("stop_after", [5, 10, 25, 40, 44])
def test_an_abort_inside_shared_pages_leaves_a_point_at_what_was_computed(stop_after: int) -> None:
    rig = Rig(AMPLE, chunk=5)
    rig.send(PROMPT[:44], 2)
    rig.run()
    rig.residency.cache.evict_swa(states=AMPLE.states)
    gone = rig.send(PROMPT[:44], 2)
    rig.turn_until(lambda: rig.request(gone).committed >= stop_after)
    stopped = min(44, rig.request(gone).scheduled)
    rig.abort(gone)
    rig.run()

    prompt = [*PROMPT[:stopped], 48, 48]
    request = rig.send(prompt, 4)
    rig.run()

    assert rig.cached(request) == stopped
    assert rig.tokens(request) == expected_output(prompt, 4, 50)
    rig.assert_conserved()


def test_the_partial_page_of_a_match_is_copied_and_its_source_kept_until_then() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT[:20], 1)
    rig.run()
    plans = len(rig.plans)

    first, second = rig.send([*PROMPT[:20], 41], 3), rig.send([*PROMPT[:20], 42], 3)
    rig.run()

    copies = rig.plans[plans].page_copies
    assert len(copies) == 2
    assert copies[0][0] == copies[1][0]
    assert copies[0][1] != copies[1][1]
    assert rig.tokens(first) == expected_output([*PROMPT[:20], 41], 3, 50)
    assert rig.tokens(second) == expected_output([*PROMPT[:20], 42], 3, 50)
    rig.assert_conserved()


def test_the_smallest_pools_serve_one_row_at_a_time() -> None:
    spec = TreeSpec(8, 4, 8)
    rig = Rig(PoolSizes(8, spec.row_swa_pages, 1), spec=spec, rows=4, chunk=3)
    prompts = [PROMPT[i : i + 20 + i] for i in range(5)]
    requests = [rig.send(p, 20) for p in prompts]
    while rig.busy:
        rig.scheduler.turn()
        assert rig.residency.rows_used <= 1

    for prompt, request in zip(prompts, requests, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 20, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("chunk", [1, 7, -1])
@pytest.mark.parametrize("length", [1, 4, 7, 8, 9, 16])
@pytest.mark.parametrize("spec", [TreeSpec(8, 4, 8), TreeSpec(8, 8, 8), TreeSpec(1, 1, 3)])
def test_prompts_at_every_boundary_are_exact_cold_and_warm(
    spec: TreeSpec, length: int, chunk: int
) -> None:
    sizes = PoolSizes(64 // spec.page_size, 2 * spec.row_swa_pages, 3)
    rig = Rig(sizes, spec=spec, rows=2, chunk=chunk)
    prompt = PROMPT[:length]
    new = 64 - length  # up to the very last slot of the pool
    for cached in (0, length - 1):
        request = rig.send(prompt, new if cached == 0 else 3)
        rig.run()
        assert rig.tokens(request) == expected_output(prompt, new, 50)[: len(rig.tokens(request))]
        assert len(rig.tokens(request)) == (new if cached == 0 else 3)
    rig.assert_conserved()


def test_with_one_ring_a_next_turn_starts_cold_rather_than_never() -> None:
    spec = TreeSpec(8, 4, 8)
    rig = Rig(PoolSizes(20, spec.row_swa_pages * 2, 1), spec=spec, rows=2)
    history = PROMPT[:21]
    for _ in range(3):
        request = rig.send(history, 4)
        rig.run()
        assert rig.cached(request) == 0
        assert rig.tokens(request) == expected_output(history, 4, 50)
        assert rig.residency.cache.points == 1
        history = [*history, *rig.tokens(request), 41]
    rig.assert_conserved()


def test_who_has_a_point_waits_for_its_state_while_others_run() -> None:
    rig = Rig(PoolSizes(full_pages=100, swa_pages=60, states=2), rows=2)
    rig.send(PROMPT[:23], 0)
    rig.run()
    rig.residency.policy = ResumePolicy(prompt_end=False, request_end=False, page_end=False)
    other = rig.send(PROMPT[30:], 30)
    rig.turn_until(lambda: bool(rig.tokens(other)))
    request = rig.send([*PROMPT[:23], 41, 42], 3)
    rig.run()

    assert rig.cached(request) == 23
    rig.assert_conserved()


def test_a_row_that_starts_from_a_point_waits_for_room_for_both_windows() -> None:
    rig = Rig(PoolSizes(full_pages=100, swa_pages=5, states=30), rows=2)
    rig.send(PROMPT[:23], 0)
    rig.run()
    rig.residency.policy = ResumePolicy(prompt_end=False, request_end=False)
    other = rig.send(PROMPT[30:], 30)
    rig.turn_until(lambda: bool(rig.tokens(other)))
    assert rig.residency.cache.points == 1
    prompt = [*PROMPT[:23], 41, 42]
    request = rig.send(prompt, 4)

    rig.scheduler.turn()

    assert rig.residency.rows_used == 1
    rig.run()
    assert rig.tokens(request) == expected_output(prompt, 4, 50)
    rig.assert_conserved()


def test_a_row_keeps_the_pages_of_one_window_however_long_it_runs() -> None:
    rig = Rig(AMPLE, rows=1, resume=ResumePolicy(prompt_end=False, request_end=False))
    request = rig.send(PROMPT[:3], 40)
    rig.turn_until(lambda: bool(rig.tokens(request)))
    used: list[int] = []
    while rig.busy:
        used.append(rig.residency.swa.capacity - rig.residency.swa.free)
        rig.scheduler.turn()

    assert max(used) == rig.spec.window_pages
    rig.assert_conserved()


def test_a_row_that_cannot_be_had_changes_nothing() -> None:
    rig = Rig(PoolSizes(6, 40, 9), rows=2, policy="fcfs")
    first = rig.send(PROMPT[:30], 10)
    rig.scheduler.turn()
    second = rig.send(PROMPT[30:50], 4)
    rig.scheduler._receive(rig.socket.receive(0.0)[0])
    request, residency = rig.request(second), rig.residency
    free = (residency.full.free, residency.swa.free, residency.states.free, residency.table.free)

    assert not residency.try_admit(request, residency.match(request), reserve_pages=1)

    assert free == (
        residency.full.free,
        residency.swa.free,
        residency.states.free,
        residency.table.free,
    )
    assert residency.cache.locks == 1
    rig.run()
    assert len(rig.tokens(first)) == 10
    assert len(rig.tokens(second)) == 4
    rig.assert_conserved()


def test_a_lost_reference_is_found_by_the_check() -> None:
    rig = Rig(AMPLE)
    request = rig.send(PROMPT[:20], 10)
    rig.turn_until(lambda: len(rig.tokens(request)) > 2)
    page = int(rig.residency.table.page_table[rig.request(request).row, 2])

    rig.residency.full.incref([page])

    with pytest.raises(IntegrityError, match=f"unit {page}"):
        rig.scheduler.turn()


def test_a_finished_row_is_zero_again() -> None:
    rig = Rig(AMPLE, rows=1)
    rig.send(PROMPT[:20], 4)
    rig.run()

    table = rig.residency.table
    for array in (table.page_table, table.window, table.state, table.length):
        assert not np.any(array)


def test_what_a_failed_prompt_computed_last_is_not_published() -> None:
    rig = Rig(AMPLE, chunk=16)
    prompt = PROMPT[:44]
    rig.runner.fail_tokens = {expected_output(prompt, 1, 50)[0]}

    request = rig.send(prompt, 5)
    rig.run()

    assert rig.outputs(request)[-1].finish == "error"
    assert rig.residency.cache.tokens_by_namespace() == {"": 32}
    rig.assert_conserved()


@pytest.mark.parametrize("new", [0, 1, 2])
def test_an_end_right_behind_the_prompt_is_an_end_to_learn_from(new: int) -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT[:20], new)
    rig.run()
    rig.send([*PROMPT[:20], *expected_output(PROMPT[:20], new, 50), 41], new)
    rig.run()

    returns = rig.residency.cache.arrays.returns
    assert (returns["ended"].sum(), returns["returned"].sum()) == (2, 1)
    rig.assert_conserved()


def test_a_request_that_cannot_start_yet_evicts_nothing() -> None:
    rig = Rig(PoolSizes(full_pages=14, swa_pages=60, states=20))
    draw = random.Random(1)
    rig.send(draw.choices(range(40), k=16), 0)
    rig.run()
    rig.send(draw.choices(range(40), k=60), 30)
    rig.scheduler.turn()

    rig.send(draw.choices(range(40), k=80), 4)
    for _ in range(10):
        rig.scheduler.turn()

    assert len(rig.replica.sets.waiting) == 1
    assert rig.residency.cache.evicted_pages == 0
    rig.run()
    rig.assert_conserved()


@pytest.mark.parametrize("chunk", [5, 8, 100])
@pytest.mark.parametrize("boundary", [9, 16, 30, 42])
def test_prompts_that_part_at_a_boundary_for_the_first_time_resume_there(
    chunk: int, boundary: int
) -> None:
    rig = Rig(AMPLE, chunk=chunk, resume=ResumePolicy(branch_min_tokens=8, waypoint_tokens=0))
    rig.send(PROMPT[:44], 2, boundaries=(boundary,))
    rig.run()

    prompt = [*PROMPT[:boundary], 47, 48]
    request = rig.send(prompt, 4)
    rig.run()

    assert rig.cached(request) == boundary
    assert rig.tokens(request) == expected_output(prompt, 4, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("boundary", [1, 7, 20, 27])
def test_a_boundary_that_saves_next_to_nothing_has_no_point(boundary: int) -> None:
    points: list[int] = []
    for boundaries in ((), (boundary,)):
        rig = Rig(AMPLE, chunk=100, resume=ResumePolicy(branch_min_tokens=8, waypoint_tokens=0))
        rig.send(PROMPT[:20], 2)
        rig.run()
        before = rig.residency.cache.points
        rig.send(PROMPT[:44], 2, boundaries=boundaries)
        rig.run()
        points.append(rig.residency.cache.points - before)
        rig.assert_conserved()

    assert points[0] == points[1]


def test_a_point_that_is_not_lent_is_not_counted_as_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 2)
    rig.run()
    residency = rig.residency
    match = residency.cache.peek(np.array(PROMPT, np.int32))
    assert match.point is not None

    with monkeypatch.context() as full:
        full.setattr(residency.points, "leaves_room", lambda claims: False)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
        assert residency.lend(match) is None
    lock = residency.lend(match)
    assert lock is not None
    assert residency._lent_points == 1
    residency.take_back(lock)
    rig.assert_conserved()


class Told:
    """Keeps batches of cache events."""

    hash_key: bytes | None = None

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []

    def publish(self, events: list[Event], *, time_s: float) -> None:
        self.batches.append(events)


def test_a_reset_is_published_before_anybody_is_told_of_it() -> None:
    told, table = Told(), RequestTable(SMALL, rows=1, max_pages=4)
    residency = Residency(SMALL, units=Units(AMPLE), table=table, event_sink=told)
    residency.reset()

    assert told.batches == [[Cleared()]]
