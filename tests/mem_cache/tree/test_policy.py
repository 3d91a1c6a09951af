"""Who goes first, by what became of others: favours in ticks, and evictions that follow them."""

import math

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from mem_cache.tree.core.binding import LENGTH_CLASSES, RETURNS, SAVE_CLASSES, USES
from mem_cache.tree.handles import PointKind
from mem_cache.tree.policy import PAGE_KINDS, POINT_KINDS, EvictionPolicy, Lru, TurnPolicy
from tests.testing.dictionary_model import Rig


def _returns(*ends: tuple[int, int, int]) -> np.ndarray:
    """Return what became of short conversations of 1, 2, ... turns: ended, returned, waited."""
    returns = np.zeros(PAGE_KINDS, RETURNS)
    for turns, end in enumerate(ends, start=1):
        returns[_short(turns)] = end
    return returns


def _short(turns: int) -> int:
    """Return the kind of a short conversation of so many turns, up to 5."""
    return 1 + (turns - 1) * LENGTH_CLASSES


def _uses(kind: PointKind, *, lived: int, used: int) -> np.ndarray:
    uses = np.zeros(POINT_KINDS, USES)
    uses["lived"][kind], uses["used"][kind] = lived, used
    return uses


UNUSED = _uses(PointKind.BOUNDARY, lived=0, used=0)


@pytest.mark.parametrize("policy", [Lru(), TurnPolicy()])
def test_a_favour_is_ticks_for_each_kind(policy: EvictionPolicy) -> None:
    for returns in (_returns(), _returns((90, 30, 900), (30, 20, 600))):
        page, point = policy.page_favour(returns), policy.point_favour(returns, UNUSED)

        assert (page.shape, page.dtype) == ((PAGE_KINDS,), np.int64)
        assert (point.shape, point.dtype) == ((POINT_KINDS, SAVE_CLASSES), np.int64)


def test_plain_lru_favours_nobody() -> None:
    returns = _returns((90, 30, 900), (30, 20, 600))

    assert not Lru().page_favour(returns).any()
    assert not Lru().point_favour(returns, UNUSED).any()


def test_before_anybody_came_back_no_leaf_is_favoured() -> None:
    assert not TurnPolicy().page_favour(_returns((500, 0, 0), (3, 0, 0))).any()


def test_two_kinds_differ_by_the_logarithm_of_their_odds_in_mean_waits() -> None:
    # 1 of 5 and 4 of 5 came back, after 1000 ticks on average: odds of 1/4 and 4.
    favour = TurnPolicy().page_favour(
        _returns((1_000_000, 200_000, 200_000_000), (1_000_000, 800_000, 800_000_000))
    )

    difference = favour[_short(2)] - favour[_short(1)]
    assert difference == pytest.approx(1000 * math.log(16), abs=2)


def test_the_kind_without_ends_is_the_least_favoured() -> None:
    favour = TurnPolicy().page_favour(_returns((90, 30, 900), (30, 20, 600), (30, 1, 600)))

    assert favour[0] == favour.min() == favour[_short(3)]
    assert favour[_short(2)] > favour[_short(1)] > favour[0]


def test_a_kind_that_has_hardly_ended_counts_as_average() -> None:
    favour = TurnPolicy().page_favour(
        _returns((5000, 1000, 50000), (5000, 3000, 150000), (1, 1, 1))
    )

    assert favour[_short(1)] < favour[_short(3)] < favour[_short(2)]
    assert favour[_short(4)] == favour[_short(5)] == favour[-1]


def test_a_length_that_has_hardly_ended_counts_as_its_number_of_turns() -> None:
    returns = _returns((5000, 1000, 50000), (5000, 3000, 150000))
    returns[_short(2) + 1] = (5000, 1000, 50000)
    favour = TurnPolicy().page_favour(returns)

    short, longer, unseen = favour[_short(2) : _short(2) + 3]
    assert longer < unseen < short
    assert favour[_short(1)] == pytest.approx(favour[_short(1) + 1], abs=1)


@pytest.mark.parametrize("returned", [0, 10**9])
def test_no_run_of_luck_makes_a_favour_boundless(returned: int) -> None:
    ended = 10**9
    favour = TurnPolicy().page_favour(_returns((ended, returned, 10 * returned), (90, 45, 450)))

    assert abs(favour).max() <= 10 * math.log(0.98 / 0.02) + 1


def test_points_go_in_the_order_of_what_they_are_left_for() -> None:
    returns = _returns((90, 30, 900), (30, 20, 600))

    favour = TurnPolicy().point_favour(returns, UNUSED)[:, -1]

    assert favour[PointKind.WAYPOINT] < favour[PointKind.PROMPT_END] == favour[PointKind.PASSED]
    assert favour[PointKind.PROMPT_END] < favour[PointKind.BRANCH] < favour[PointKind.SHARED]
    ends = favour[PointKind.REQUEST_END :]
    assert ends.tolist() == TurnPolicy().page_favour(returns).tolist()


def test_twice_the_tokens_saved_count_as_twice_the_odds() -> None:
    favour = TurnPolicy().point_favour(_returns((90, 30, 30_000)), UNUSED)

    assert favour.shape[1] == SAVE_CLASSES
    steps = np.diff(favour, axis=1)
    assert abs(steps - 1000 * math.log(2)).max() <= 1


def test_boundaries_are_favoured_as_they_are_used() -> None:
    returns = _returns((90, 30, 3000))
    kinds = PointKind.BOUNDARY
    favour = [
        TurnPolicy().point_favour(returns, _uses(kinds, lived=lived, used=used))[kinds, -1]
        for lived, used in ((100_000, 0), (0, 0), (100_000, 1000), (100_000, 10**9))
    ]

    # Never used; not known yet; once in a mean wait of 100; without bounds but for the most.
    assert favour[0] < favour[1] < favour[2] < favour[3]
    assert favour[2] == pytest.approx(-100, abs=2)
    assert favour[3] == 200


def test_next_turns_that_come_at_once_leave_all_favours_finite() -> None:
    returns = _returns((90, 90, 0))
    for used in (0, 10**9):
        uses = _uses(PointKind.BOUNDARY, lived=0, used=used)
        assert abs(TurnPolicy().point_favour(returns, uses)).max() < 100


class _Favour:
    """Favours one kind of page and one kind of point by a fixed number of ticks."""

    def __init__(self, *, page: int, point: int, ticks: int) -> None:
        self.page, self.point, self.ticks = page, point, ticks

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return the ticks for one kind."""
        return np.where(np.arange(PAGE_KINDS) == self.page, self.ticks, 0)

    def point_favour(self, returns: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return the ticks for one kind."""
        favour = np.zeros((POINT_KINDS, SAVE_CLASSES), np.int64)
        favour[self.point] = self.ticks
        return favour


class _SavesMuch(Lru):
    """Favours points that save 64 tokens or more."""

    def point_favour(self, returns: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return 50 ticks for them."""
        favour = np.zeros((POINT_KINDS, SAVE_CLASSES), np.int64)
        favour[:, 1:] = 50
        return favour


def _rig(policy: EvictionPolicy) -> Rig:
    spec = TreeSpec(page_size=4, swa_page_size=2, window=4)
    return Rig(spec, full=40, swa=40, states=20, policy=policy)


@pytest.mark.parametrize(("ticks", "survives"), [(0, False), (5, False), (50, True)])
def test_a_favoured_leaf_is_spared_for_as_many_ticks(ticks: int, survives: bool) -> None:
    rig = _rig(_Favour(page=1, point=0, ticks=ticks))
    old = rig.begin([1] * 4)
    rig.publish(old, ended=True)
    rig.finish(old)
    for _ in range(20):
        rig.match([9, 9])
    rig.complete([2] * 4)

    assert rig.evict_full(rig.full.free + 1)

    assert (rig.match([1] * 5).full_tokens == 4) == survives
    assert (rig.match([2] * 5).full_tokens == 4) != survives
    rig.check()


def test_a_fork_that_lost_its_branches_is_as_old_as_the_last_use_of_any() -> None:
    rig = _rig(_Favour(page=1, point=0, ticks=-50))
    for token in (20, 30):
        row = rig.begin([1, 1, 1, 1, token])
        rig.publish(row, ended=True)
        rig.finish(row)
    rig.complete([2] * 4)
    for _ in range(5):
        rig.match([1, 1, 1, 1, 20, 0])

    assert rig.evict_full(rig.full.free + 3)

    # Both branches go early, being of little worth; the prompt before them was used last.
    assert rig.match([1] * 5).full_tokens == 4
    assert rig.match([2] * 5).full_tokens == 0
    rig.check()


@pytest.mark.parametrize(("ticks", "survives"), [(0, False), (5, False), (50, True)])
def test_a_favoured_point_is_spared_for_as_many_ticks(ticks: int, survives: bool) -> None:
    rig = _rig(_Favour(page=0, point=PointKind.BRANCH, ticks=ticks))
    row = rig.begin([1] * 8)
    rig.publish(row)
    rig.add_point(row, 4, kind=PointKind.BRANCH)
    for _ in range(20):
        rig.match([9, 9])
    rig.add_point(row, 8)

    assert rig.evict_swa(states=rig.states.free + 1)

    assert (rig.match([1] * 4 + [5]).start == 4) == survives
    assert (rig.match([1] * 8 + [5]).start == 8) != survives
    rig.finish(row)
    rig.check()


def test_a_point_is_worth_more_once_the_one_before_it_is_gone() -> None:
    rig = _rig(_SavesMuch())
    rows = [rig.begin([1] * 80), rig.begin([2] * 40)]
    for row in rows:
        rig.publish(row)
    for row, position in ((rows[0], 40), (rows[0], 80), (rows[1], 40)):
        rig.add_point(row, position)
        rig.match([9, 9])

    assert rig.evict_swa(states=rig.states.free + 2)

    assert rig.match([*[1] * 80, 5]).start == 80
    assert rig.match([*[2] * 40, 5]).start == 0
    for row in rows:
        rig.finish(row)
    rig.check()
