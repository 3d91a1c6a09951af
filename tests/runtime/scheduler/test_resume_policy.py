"""Where a prompt leaves resume points, and why."""

import random

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.tree.handles import PointKind
from runtime.scheduler.resume_policy import EARLIER_PAGES, ResumePolicy
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

PAGE = 8
SPEC = TreeSpec(PAGE, 4, 8)
AMPLE = PoolSizes(full_pages=200, swa_pages=300, states=100)
PROMPT = random.Random(1).choices(range(40), k=120)


def _wanted(rig: Rig, prompt: list[int], boundaries: tuple[int, ...] = ()) -> dict[int, PointKind]:
    """Return what a prompt is asked to leave when it is admitted."""
    request = rig.send(prompt, 1, boundaries=boundaries)
    rig.scheduler._receive(rig.socket.receive(0.0)[0])
    rig.replica._admission.admit()
    return dict(rig.request(request).holding.save_positions)


@pytest.mark.parametrize("length", [1, 8, 9, 40, 41, 48, 97])
def test_a_cold_prompt_leaves_one_at_its_last_page_one_before_and_one_at_its_end(
    length: int,
) -> None:
    wanted = _wanted(_rig(), PROMPT[:length])

    last = (length - 1) // PAGE * PAGE
    expected = {
        last - EARLIER_PAGES * PAGE: PointKind.WAYPOINT,
        last: PointKind.BOUNDARY,
        length: PointKind.PROMPT_END,
    }
    there = {p: kind for p, kind in expected.items() if p >= 8 or p == length}
    assert wanted == there


def test_what_the_chat_format_tells_is_kept_beside_them() -> None:
    wanted = _wanted(_rig(), PROMPT[:97], boundaries=(5, 20, 64))

    assert wanted == {
        20: PointKind.BOUNDARY,
        64: PointKind.BOUNDARY,
        96: PointKind.BOUNDARY,
        97: PointKind.PROMPT_END,
    }


def test_a_point_is_left_a_token_behind_what_is_known_where_that_is_worth_one() -> None:
    rig = Rig(AMPLE, spec=SPEC, resume=ResumePolicy(branch_min_tokens=1, page_end=False))
    rig.send(PROMPT[:20], 1)
    rig.run()
    wanted = _wanted(rig, [*PROMPT[:20], *range(41, 49)], boundaries=(19, 20, 21, 23))

    assert wanted == {21: PointKind.BOUNDARY, 23: PointKind.BOUNDARY, 28: PointKind.PROMPT_END}


def test_what_is_there_is_not_left_again() -> None:
    rig = _rig()
    rig.send(PROMPT[:97], 1)
    rig.run()

    assert _wanted(rig, [*PROMPT[:96], 41, 42]) == {98: PointKind.PROMPT_END}


def test_each_kind_can_be_turned_off() -> None:
    rig = _rig(page_end=False, prompt_end=False, every_pages=5)

    assert _wanted(rig, PROMPT[:97]) == {40: PointKind.BRANCH, 80: PointKind.BRANCH}


@pytest.mark.parametrize("parts_at", [97, 100, 102])
def test_the_second_prompt_that_parts_in_the_last_page_starts_at_its_begin(parts_at: int) -> None:
    rig = _rig()
    rig.send(PROMPT[:104], 2)
    rig.run()
    prompt = [*PROMPT[:parts_at], 45, 46, 47]
    second = rig.send(prompt, 3)
    rig.run()

    assert rig.cached(second) == 96
    assert rig.tokens(second) == expected_output(prompt, 3, 50)
    rig.assert_conserved()


def _rig(**options: object) -> Rig:
    policy = ResumePolicy(branch_min_tokens=8, waypoint_tokens=0, **options)  # pyright: ignore[reportArgumentType]
    return Rig(AMPLE, spec=SPEC, chunk=50, resume=policy)
