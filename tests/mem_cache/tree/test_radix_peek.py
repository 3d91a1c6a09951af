"""Looking changes nothing, a use counts; and why tokens are missing is known."""

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import PointKind
from mem_cache.tree.policy import Lru, TurnPolicy
from mem_cache.tree.radix import POLICY_TICKS
from tests.testing.dictionary_model import Rig

SPEC = TreeSpec(page_size=4, swa_page_size=2, window=4)


@pytest.fixture
def rig() -> Rig:
    return Rig(SPEC, full=40, swa=40, states=20, replay_tokens=12)


def _state(rig: Rig) -> list[bytes]:
    """Return all that the tree knows."""
    a = rig.cache.arrays
    arrays = (
        *(a.tokens, a.stamp, a.kind, a.turns, a.flags, a.trail, a.returns, a.traces, a.uses),
        *(a.page_lists, a.point_lists, a.point_stamp, a.point_kind, a.point_saves, a.roots),
        *a.words.values(),
        *a.point_words.values(),
    )
    return [bytes(a.tree), *(array.tobytes() for array in arrays)]


def test_looking_changes_nothing(rig: Rig) -> None:
    tokens = list(range(30))
    row = rig.begin(tokens[:20])
    rig.publish(row, ended=True)
    rig.add_point(row, 20, kind=PointKind.REQUEST_END)
    rig.finish(row)
    before, tick = _state(rig), rig.cache.arrays.tree.tick

    for length in (3, 4, 13, 20, 30):
        seen = rig.cache.peek(np.array(tokens[:length], np.int32))
        assert _state(rig) == before
        assert seen.full_tokens == min(length - 1, 20)

    match = rig.cache.match(np.array(tokens, np.int32))
    assert (match.start, match.turns) == (20, 2)
    assert rig.cache.arrays.tree.tick == tick + 1
    assert rig.cache.arrays.returns["returned"].sum() == 1


def test_a_match_tells_whether_the_point_it_lacks_was_evicted(rig: Rig) -> None:
    tokens = [*range(16), 90, 91]
    row = rig.begin(tokens[:16])
    rig.publish(row)
    rig.finish(row)
    assert not rig.match(tokens).point_evicted

    row = rig.begin(tokens[:16])
    rig.add_point(row, 14)
    rig.finish(row)
    assert rig.match(tokens).start == 14
    rig.evict_swa(states=rig.states.capacity)
    assert rig.match(tokens).start < 14
    assert rig.match(tokens).point_evicted
    # What ends before the lost point lacks nothing that was there.
    assert not rig.match([*tokens[:12], 90]).point_evicted

    row = rig.begin(tokens[:16])
    rig.add_point(row, 14)
    rig.finish(row)
    assert not rig.match(tokens).point_evicted
    rig.check()


@pytest.mark.parametrize(("prompt_tokens", "returned"), [(16, 4), (15, 3), (8, 2), (0, 0)])
def test_pages_of_prompts_are_counted_that_come_back(
    rig: Rig, prompt_tokens: int, returned: int
) -> None:
    seen = 0
    for _ in range(2):
        row = rig.begin(list(range(16)))
        row.prompt_tokens = prompt_tokens
        rig.publish(row)
        rig.finish(row)
        seen = rig.cache.returned_pages
        rig.evict_full(rig.full.capacity)

    assert seen == returned
    rig.complete([50] * 16)
    assert rig.cache.returned_pages == returned
    rig.check()


def test_a_flush_is_no_eviction(rig: Rig) -> None:
    rig.complete(list(range(16)))
    rig.evict_full(rig.full.capacity)
    rig.reset()
    rig.complete(list(range(16)))

    assert rig.cache.returned_pages == 0


def test_requests_of_namespaces_that_hold_nothing_yet_advance_the_clock() -> None:
    rig = Rig(SPEC, full=40, swa=40, states=3)
    for number in range(5):
        row = rig.begin([number] * 5, namespace=f"name {number}")
        rig.publish(row)
        # Of kinds in turn: only age tells which one is the oldest.
        kind = PointKind.BOUNDARY if number % 2 == 0 else PointKind.PROMPT_END
        rig.add_point(row, 4, kind=kind)
        rig.finish(row)
        rig.evict_swa(states=1)

    held = [rig.match([number] * 6, namespace=f"name {number}").start for number in range(5)]
    assert held == [0, 0, 0, 4, 4]
    rig.check()


def _saving(rig: Rig, *positions: int) -> None:
    row = rig.begin(list(range(positions[-1] + 1)))
    rig.publish(row)
    for position in positions:
        assert rig.add_point(row, position, kind=PointKind.BRANCH)
    rig.finish(row)


def _there(rig: Rig) -> set[int]:
    return set(rig.cache.arrays.point("position").tolist()) - {0}


def test_the_point_that_saves_least_goes_first() -> None:
    spec = TreeSpec(page_size=64, swa_page_size=16, window=32)
    rig = Rig(spec, full=40, swa=60, states=20, replay_tokens=4096, policy=TurnPolicy())
    _saving(rig, 500, 560, 1200)
    rig.match([7, 7])

    for left in ({500, 1200}, {1200}, set[int]()):
        rig.evict_swa(states=rig.states.free + 1)
        assert _there(rig) == left
        rig.check()


def test_the_policy_is_asked_every_so_many_requests() -> None:
    class Counting(Lru):
        asked = 0

        def page_favour(self, returns: np.ndarray) -> np.ndarray:
            self.asked += 1
            return super().page_favour(returns) + self.asked

    policy = Counting()
    rig = Rig(SPEC, full=9, swa=9, states=3, policy=policy)
    asked: list[int] = []
    for _ in range(2 * POLICY_TICKS + 1):
        rig.match([1, 2])
        asked.append(policy.asked)

    assert asked == [1] * POLICY_TICKS + [2] * POLICY_TICKS + [3]
    assert (rig.cache.arrays.page_favour == 3).all()


def test_no_point_saves_more_than_a_replay_computes() -> None:
    spec = TreeSpec(page_size=64, swa_page_size=16, window=32)
    rig = Rig(spec, full=40, swa=60, states=20, replay_tokens=100, policy=TurnPolicy())
    _saving(rig, 1200)
    other = rig.begin([99] * 90)
    rig.publish(other)
    rig.add_point(other, 90, kind=PointKind.BRANCH)
    rig.finish(other)
    rig.match([7, 7])

    # They save 100 and 90 tokens, which is about the same: the older one goes first.
    rig.evict_swa(states=rig.states.free + 1)
    assert _there(rig) == {90}
    rig.check()


def test_a_point_saves_more_once_the_one_before_it_is_gone() -> None:
    spec = TreeSpec(page_size=64, swa_page_size=16, window=32)
    rig = Rig(spec, full=60, swa=80, states=20, replay_tokens=4096, policy=TurnPolicy())
    _saving(rig, 1000, 1060)
    other = rig.begin([99] * 300)
    rig.publish(other)
    rig.add_point(other, 300, kind=PointKind.BRANCH)
    rig.finish(other)
    [first] = np.flatnonzero(rig.cache.arrays.point("position") == 1000)
    point = rig.cache.peek(np.array([*range(1000), 5], np.int32)).point
    assert point is not None
    assert point.id == first

    # 1,060 saves 60 tokens beside 1,000, and 1,060 without it.
    rig.cache.arrays.point_stamp[first] = 0
    rig.evict_swa(states=rig.states.free + 1)
    assert _there(rig) == {1000, 300}
    rig.check()


def test_a_point_that_saves_more_by_now_is_as_old_among_its_like_as_it_was() -> None:
    spec = TreeSpec(page_size=64, swa_page_size=16, window=32)
    rig = Rig(spec, full=99, swa=80, states=20)
    for positions in ((1100,), (1000, 1060), (1200,), (9,)):
        row = rig.begin([positions[-1], *range(positions[-1])])
        rig.publish(row)
        for position in positions:
            rig.add_point(row, position)
        rig.finish(row)
    arrays = rig.cache.arrays
    classes = {p: int(arrays.point_saves[arrays.point("position") == p][0]) for p in _there(rig)}
    assert classes == {9: 0, 1000: 4, 1060: 0, 1100: 5, 1200: 5}
    # 1,000 goes first; then 1,060 saves as much as those that go last.
    arrays.point_favour[PointKind.PROMPT_END, [0, 4]] = -100, -200

    for left in ({1060, 1100, 1200, 9}, {1060, 1100, 1200}, {1060, 1200}, {1200}):
        rig.evict_swa(states=rig.states.free + 1)
        assert _there(rig) == left
        rig.check()


def test_one_of_many_points_that_saves_more_by_now_goes_before_its_time() -> None:
    spec = TreeSpec(page_size=32, swa_page_size=16, window=32)
    rig = Rig(spec, full=220, swa=220, states=80)
    for number in range(70):
        positions = (40, 90) if number == 68 else (65,)
        row = rig.begin([100 + number, *range(90)])
        rig.publish(row)
        for position in positions:
            rig.add_point(row, position)
        rig.finish(row)
    arrays = rig.cache.arrays
    arrays.point_favour[PointKind.PROMPT_END, 0] = -100

    # 40 goes, then the first of the others. The place of 90 is looked for among the oldest 64.
    rig.evict_swa(states=rig.states.free + 2)
    rig.check()
    point = np.flatnonzero(arrays.point("position") == 90)[0]
    stamps = arrays.point_stamp[arrays.point("position") == 65]
    assert (len(stamps), int((stamps < arrays.point_stamp[point]).sum())) == (68, 63)


def test_points_that_save_ever_so_much_are_of_one_class() -> None:
    spec = TreeSpec(page_size=1024, swa_page_size=1024, window=32)
    rig = Rig(spec, full=20, swa=20, states=4)
    row = rig.begin([7] * 9000)
    rig.publish(row)
    for position in (100, 4196, 8195):
        rig.add_point(row, position)
    rig.finish(row)

    classes = rig.cache.arrays.point_saves[np.flatnonzero(rig.cache.arrays.point("position"))]
    assert sorted(classes.tolist()) == [1, 6, 7]
