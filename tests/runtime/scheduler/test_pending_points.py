"""Resume points on their way into the tree: saved, held, placed or given up."""

import random

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.tree.handles import PointKind
from runtime.scheduler.pending_points import Claims, PendingPoints
from runtime.scheduler.resume_policy import ResumePolicy
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
PLAIN = ResumePolicy(page_end=False)
PROMPT = random.Random(1).choices(range(40), k=44)


def prefilling(rig: Rig, prompt: list[int]) -> int:
    """Send a prompt and run its first chunk."""
    request = rig.send(prompt, 3)
    rig.scheduler.turn()
    return request


def held(rig: Rig) -> tuple[int, int]:
    points: PendingPoints = rig.residency.points
    return points.swa_held, points.states_held


def test_a_point_inside_a_page_is_held_until_its_page_is_published(either_way: bool) -> None:
    rig = Rig(AMPLE, chunk=6, resume=PLAIN)
    request = rig.send(PROMPT[:20], 3)
    rig.turn_until(lambda: rig.request(request).scheduled == 6)
    rig.request(request).holding.save_positions[11] = PointKind.BRANCH

    rig.scheduler.turn()
    assert [p.position for p in rig.request(request).holding.pending_points] == [11]
    assert held(rig) == (2, 1)

    rig.turn_until(lambda: rig.request(request).holding.published == 16, turns=2)
    # With overlap the last chunk, and with it the point at the prompt's end, is on its way.
    assert [p.position for p in rig.request(request).holding.pending_points] == [20] * either_way
    rig.run()
    again = rig.send([*PROMPT[:11], 49, 49], 4)
    rig.run()
    assert rig.cached(again) == 11
    assert rig.tokens(again) == expected_output([*PROMPT[:11], 49, 49], 4, 50)
    rig.assert_conserved()


def test_several_points_of_one_chunk_are_saved_in_order() -> None:
    rig = Rig(AMPLE, chunk=40, resume=PLAIN)
    request = rig.send(PROMPT, 1)
    rig.scheduler._receive(rig.socket.receive(0.0)[0])
    rig.replica._admission.admit()
    rig.request(request).holding.save_positions |= dict.fromkeys(
        (31, 9, 8, 40, 41), PointKind.BRANCH
    )

    rig.scheduler.turn()

    assert rig.plans[0].save_position.tolist() == [40, 8, 9, 31, 40]
    assert rig.request(request).holding.save_positions.keys() == {41, 44}
    rig.run()
    rig.assert_conserved()


@pytest.mark.parametrize("rings", [1, 2])
def test_a_point_without_room_beside_running_rows_is_given_up(rings: int) -> None:
    spec = TreeSpec(8, 4, 8)
    rig = Rig(PoolSizes(20, spec.row_swa_pages, rings), spec=spec, rows=1)

    request = rig.send(PROMPT[:30], 3)
    rig.turn_until(lambda: bool(rig.tokens(request)))

    assert rig.residency.cache.points == rings - 1
    assert rig.request(request).holding.save_positions == {}
    rig.run()
    assert rig.tokens(request) == expected_output(PROMPT[:30], 3, 50)
    rig.assert_conserved()


def test_a_branch_without_room_beside_running_rows_is_not_kept() -> None:
    spec = TreeSpec(8, 4, 8)
    rig = Rig(PoolSizes(20, spec.row_swa_pages, 2), spec=spec, rows=1)
    rig.send(PROMPT[:21], 0)
    rig.run()
    prompt = [*PROMPT[:20], 41, 42]
    request = rig.send(prompt, 3)
    rig.run()

    assert rig.cached(request) == 20
    assert rig.tokens(request) == expected_output(prompt, 3, 50)
    rig.assert_conserved()


def test_points_take_no_pages_that_the_window_of_their_row_will_need() -> None:
    spec = TreeSpec(8, 4, 8)
    rig = Rig(PoolSizes(20, spec.row_swa_pages, 9), spec=spec, rows=1, chunk=3, resume=PLAIN)
    request = rig.send(PROMPT[:20], 3)
    rig.scheduler._receive(rig.socket.receive(0.0)[0])
    rig.replica._admission.admit()
    rig.request(request).holding.save_positions |= dict.fromkeys((1, 2, 3), PointKind.BRANCH)

    rig.scheduler.turn()

    # The window has one of its two pages yet.
    assert held(rig) == (2, 2)
    assert rig.residency.swa.free == 1
    rig.run()
    assert rig.tokens(request) == expected_output(PROMPT[:20], 3, 50)
    rig.assert_conserved()


def test_points_are_told_apart_by_what_they_were_left_for() -> None:
    rig = Rig(AMPLE, resume=ResumePolicy(request_end=False, branch_min_tokens=1))
    for prompt in (PROMPT[:30], [*PROMPT[:20], 41, 42]):
        rig.send(prompt, 0)
        rig.run()

    spans, _ = rig.residency.cache.spans(9)
    assert sorted((point.position, point.kind) for span in spans for point in span.points) == [
        (20, PointKind.BRANCH),
        (22, PointKind.PROMPT_END),
        (24, PointKind.BOUNDARY),
        (30, PointKind.PROMPT_END),
    ]


@pytest.mark.parametrize(
    ("swa_pages", "rings", "room"),
    [(50, 15, True), (100, 30, True), (101, 1, False), (1, 31, False)],
)
def test_claims_that_cannot_all_be_met_leave_no_room(
    swa_pages: int, rings: int, room: bool
) -> None:
    assert Rig(AMPLE).residency.points.leaves_room(Claims(swa_pages, rings)) is room


def test_what_is_pending_counts_against_the_claims() -> None:
    rig = Rig(AMPLE, chunk=6, resume=PLAIN)
    request = rig.send(PROMPT[:20], 3)
    rig.turn_until(lambda: rig.request(request).scheduled == 6)
    rig.request(request).holding.save_positions[11] = PointKind.BRANCH
    rig.scheduler.turn()

    points = rig.residency.points
    assert points.leaves_room(Claims(98, 29))
    assert not points.leaves_room(Claims(99, 29))
    assert not points.leaves_room(Claims(98, 30))


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_ends_early_leaves_nothing_pending(fails: bool) -> None:
    rig = Rig(AMPLE, chunk=6, resume=PLAIN)
    request = rig.send(PROMPT[:20], 3)
    rig.turn_until(lambda: rig.request(request).scheduled == 6)
    rig.request(request).holding.save_positions[11] = PointKind.BRANCH
    rig.scheduler.turn()
    assert held(rig) != (0, 0)

    if fails:
        rig.replica._endings.fail(rig.at_rest(request), "broken")
    else:
        rig.abort(request)
    rig.run()

    assert held(rig) == (0, 0)
    later = rig.send([*PROMPT[:11], 49, 49], 2)
    rig.run()
    assert rig.cached(later) == (0 if fails else 11)
    rig.assert_conserved()


@pytest.mark.parametrize("length", [13, 15, 17, 21, 23, 25])
def test_a_point_left_one_token_early_does_not_serve_yet_another_token_less(length: int) -> None:
    """Its ring and window are of the point one further on: they lack the oldest tokens."""
    rig = Rig(AMPLE)
    base = PROMPT[:length]
    rig.send(base, 0)
    rig.run()
    branch = rig.send([*base[:-1], 41, 42, 43], 0)
    rig.run()
    other = [*base[:-2], 45, 46, 47]
    third = rig.send(other, 3)
    rig.run()
    same = rig.send([*base[:-1], 44], 3)
    rig.run()

    assert rig.cached(branch) == length - 1
    assert rig.tokens(third) == expected_output(other, 3, 50)
    assert rig.cached(same) == length - 1
    assert rig.tokens(same) == expected_output([*base[:-1], 44], 3, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("prompt", [PROMPT[:21], [*PROMPT[:21], 41, 42]], ids=["again", "longer"])
def test_who_goes_on_where_a_point_serves_leaves_no_other_there(prompt: list[int]) -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT[:21], 0)
    rig.run()
    request = rig.send(prompt, 3)
    rig.scheduler.turn()

    plan = rig.plans[-1]
    assert plan.chunk_start.tolist() == [min(21, len(prompt) - 1)]
    assert len(plan.ring_copies) == 1  # the row's own
    rig.run()
    assert rig.tokens(request) == expected_output(prompt, 3, 50)
    rig.assert_conserved()


def test_a_prompt_that_ends_at_such_a_point_replaces_it_by_a_better_one() -> None:
    rig = Rig(AMPLE)
    base = PROMPT[:21]
    rig.send(base, 0)
    rig.run()
    rig.send([*base[:-1], 41, 42, 43], 0)
    rig.run()
    for cached in (0, 19):
        request = rig.send(base[:-1], 2)
        rig.run()
        assert rig.cached(request) == cached
    rig.assert_conserved()


def test_without_a_policy_nothing_is_pending_and_nothing_resumes() -> None:
    rig = Rig(AMPLE, resume=ResumePolicy(prompt_end=False, request_end=False))
    prompt = PROMPT[:20]
    rig.send(prompt, 3)
    rig.run()
    again = rig.send(prompt, 3)
    rig.run()

    assert rig.residency.cache.points == 0
    assert rig.cached(again) == 0
    assert rig.tokens(again) == expected_output(prompt, 3, 50)
    rig.assert_conserved()
