"""What a request is handed: values that compare, and a lock that knows where it stands."""

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Lock, Match, Point, PointKind
from mem_cache.tree.policy import PAGE_KINDS, POINT_KINDS
from tests.testing.dictionary_model import Rig


def test_a_new_lock_is_in_force() -> None:
    lock = Lock(7, point=2, turns=3, tick=9)

    assert (lock.node, lock.point, lock.turns, lock.tick) == (7, 2, 3, 9)
    assert not lock.released


def test_a_lock_has_no_room_for_what_nobody_reads() -> None:
    with pytest.raises(AttributeError):
        Lock(7, point=2, turns=3, tick=9).nodes = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_two_locks_are_two_even_on_the_same_page() -> None:
    assert Lock(7, point=0, turns=1, tick=1) != Lock(7, point=0, turns=1, tick=1)


def test_points_are_equal_if_all_they_say_is() -> None:
    assert Point(9, 4, 1, (2, 3), False) == Point(9, 4, 1, (2, 3), False)
    assert Point(9, 4, 1, (2, 3), False) != Point(9, 4, 1, (2, 3), True)


def test_what_was_matched_cannot_be_changed() -> None:
    match = Match(0, np.empty(0, np.int32), 0, "", None, 0, 1, 0)

    with pytest.raises(AttributeError):
        match.start = 4  # pyright: ignore[reportAttributeAccessIssue]


def test_only_what_begins_amid_a_match_without_a_point_is_a_replay() -> None:
    point = Point(1, 2, 1, (1,), False)
    plans = [(None, 2), (None, 0), (None, 4), (point, 2)]

    matches = [Match(4, np.empty(1, np.int32), 1, "", at, start, 1, 0) for at, start in plans]

    assert [match.replays for match in matches] == [True, False, False, False]


def test_every_number_of_turns_has_a_kind_of_point_of_its_own() -> None:
    assert sorted(PointKind) == list(range(len(PointKind)))
    assert max(PointKind) == PointKind.REQUEST_END
    assert POINT_KINDS - PAGE_KINDS == PointKind.REQUEST_END


def test_a_match_names_pages_positions_and_the_plan() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=9, states=3)
    pages = rig.complete([1, 2, 3, 4, 5, 6], 5)

    match = rig.match([1, 2, 3, 4, 5, 6, 7], namespace="")

    node = rig.cache.arrays.node_of[pages[1]]
    assert (match.full_tokens, match.pages.tolist(), match.node) == (6, pages, node)
    assert match.point is not None
    # Of [1, 5) in SWA pages of 2, in two places: page 2 over page 0, and page 1.
    assert (match.point.position, len(match.point.swa_pages), match.point.exact) == (5, 2, False)
    assert (match.start, match.turns, match.namespace) == (5, 1, "")


def test_an_insertion_tells_what_was_new_and_where() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=9, states=3)
    known = rig.complete([1, 2, 3, 4, 5])
    mine = rig.full.alloc(3)

    found = rig.cache.insert(np.array([1, 2, 3, 4, 6, 6, 6, 6, 7], np.int32), mine)

    assert found.pages.tolist() == [known[0], mine[1]]
    assert rig.cache.arrays.unit[found.node] == mine[2]
    assert (found.new_tokens, found.first_new) == (5, 1)


def test_a_lock_goes_where_its_tokens_go() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=9, states=3)
    node_of = rig.cache.arrays.node_of
    pages = rig.complete([1] * 9)
    row = rig.begin([1] * 5)
    assert row.lock.node == node_of[pages[0]]

    rig.publish(row)
    held = row.lock.node
    assert held == node_of[pages[1]]
    assert rig.compute(row, [2] * 6)
    rig.publish(row)

    assert row.lock.node == node_of[row.table[2]]
    assert rig.cache.arrays.page("locks")[held] == 0
    rig.finish(row)
    assert row.lock.released
