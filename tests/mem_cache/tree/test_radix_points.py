"""Resume points by example: shared, moved, dropped, revived, pinned."""

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import PointKind
from tests.testing.dictionary_model import Rig, Row
from tests.testing.tree_view import end_of, page_ids, points_by_age


def test_a_point_on_one_sibling_serves_all_that_share_the_tokens_before_it(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6)
    for last in range(10, 15):
        rig.complete([1, 2, 3, 4, 5, 6, last, 8, 9, 9])

    for last in range(9, 16):
        assert rig.match([1, 2, 3, 4, 5, 6, last, 8, 9, 9, 9]).start == 6
    assert rig.cache.points == 1


def test_the_same_tokens_get_one_point_whichever_sibling_it_is_offered_on(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6)
    row = rig.begin([1, 2, 3, 4, 5, 6, 0, 0])
    rig.publish(row)

    assert rig.add_point(row, 6) is False
    assert rig.add_point(row, 7) is True
    assert rig.cache.points == 2


def test_a_point_moves_to_a_sibling_when_its_own_node_is_evicted(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6, 7, 8)
    rig.complete([1, 2, 3, 4, 5, 6, 0, 0])
    rig.match([1, 2, 3, 4, 5, 6, 0, 0, 0])

    rig.evict_full(rig.full.free + 1)

    assert rig.match([1, 2, 3, 4, 5, 6, 7, 8]).start == 6
    assert rig.cache.points == 1
    rig.check()


def test_dropping_points_leaves_a_tombstone_that_a_new_point_revives(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    rig.evict_swa(swa_pages=rig.swa.capacity)
    assert rig.match(list(range(11))).point is None
    assert rig.match(list(range(11))).full_tokens == 10

    rig.complete(list(range(10)), 10)

    assert rig.match(list(range(11))).start == 10


def test_window_pages_are_shared_and_free_with_the_last_point_that_names_them(rig: Rig) -> None:
    rig.complete(list(range(12)), 8, 9)
    # [4, 8) is SWA pages 2 and 3; [5, 9) is 4 over 2, and 3, which is shared.
    assert rig.swa.free == rig.swa.capacity - 3

    rig.evict_swa(states=rig.states.free + 1)
    assert rig.swa.free == rig.swa.capacity - 2

    rig.evict_swa(swa_pages=rig.swa.free + 1)
    assert rig.swa.free == rig.swa.capacity


def test_the_point_used_longest_ago_goes_first(rig: Rig) -> None:
    rig.complete(list(range(10)), 5, 10)
    rig.complete([9, 9, 9], 3)
    rig.match([0, 1, 2, 3, 4, 99])

    rig.evict_swa(states=rig.states.free + 1)

    assert points_by_age(rig.cache, PointKind.PROMPT_END) == [3, 5]


def test_no_point_goes_for_a_pool_that_nobody_asked_for(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    states, swa = rig.states.alloc(rig.states.free), rig.swa.alloc(rig.swa.free)

    rig.swa.decref(swa[:1])
    assert rig.cache.evict_swa(swa_pages=1)
    swa[:1] = rig.swa.alloc(1)
    rig.states.decref(states[:1])
    assert rig.cache.evict_swa(states=1)

    assert rig.cache.points == 1
    rig.states.decref(states[1:])
    rig.swa.decref(swa)


def test_points_of_a_kind_age_by_each_request_that_comes(rig: Rig) -> None:
    rig.complete(list(range(10)), 5, 10)
    before = rig.cache.arrays.uses["lived"].sum()
    for _ in range(3):
        rig.match([99, 99])

    assert rig.cache.arrays.uses["lived"].sum() - before == 3 * 2


def test_a_point_that_was_gone_on_from_changes_its_kind(rig: Rig) -> None:
    row = rig.begin(list(range(12)))
    rig.publish(row, ended=True)
    for position, kind in ((4, PointKind.BRANCH), (8, PointKind.PROMPT_END)):
        assert rig.add_point(row, position, kind=kind)
    assert rig.add_point(row, 12, kind=PointKind.REQUEST_END)
    rig.finish(row)
    # The end of a request counts as its leaf does, which has had one turn.
    assert points_by_age(rig.cache, PointKind.REQUEST_END + 1) == [12]

    for length in (4, 8, 12):
        rig.finish(rig.begin([*range(length), 50]))

    assert points_by_age(rig.cache, PointKind.SHARED) == [4]
    assert points_by_age(rig.cache, PointKind.PROMPT_END) == [8]
    assert points_by_age(rig.cache, PointKind.PASSED) == [12]


def test_a_pinned_point_stays_until_its_last_user_lets_go(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    one, two = rig.begin(list(range(12))), rig.begin(list(range(12)))

    assert not rig.evict_swa(states=rig.states.capacity)
    rig.cache.unlock_point(one.lock)
    rig.cache.unlock_point(one.lock)
    assert not rig.evict_swa(states=rig.states.capacity)
    rig.cache.unlock_point(two.lock)

    assert rig.evict_swa(states=rig.states.capacity)
    rig.check()


def _holder(rig: Rig, row: Row) -> int:
    return int(rig.cache.arrays.point("holder")[row.lock.point])


def test_a_pin_keeps_the_page_of_the_point_although_the_row_went_elsewhere(rig: Rig) -> None:
    rig.complete(list(range(10)), 7)
    row = rig.begin([*range(7), 50, 51])
    rig.publish(row)
    holder = _holder(rig, row)
    assert holder not in (0, row.lock.node)

    assert not rig.evict_full(rig.full.capacity)
    assert holder in page_ids(rig.cache)

    rig.cache.unlock_point(row.lock)
    assert not rig.evict_full(rig.full.capacity)
    assert holder not in page_ids(rig.cache)
    assert rig.match([*range(9)]).full_tokens == 7
    rig.check()


def test_no_point_is_added_where_the_tokens_are_gone(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    node, above = row.lock.node, int(rig.cache.arrays.node_of[row.table[1]])
    rig.finish(row)
    swa, state = rig.swa.alloc(2).tolist(), int(rig.states.alloc(1)[0])

    rig.evict_full(rig.full.capacity - 2)
    assert not rig.cache.add_point(node, 9, swa_pages=swa, state=state)
    assert not rig.cache.add_point(above, 9, swa_pages=swa, state=state)
    assert rig.cache.add_point(above, 7, swa_pages=swa, state=state)
    rig.state_content[state] = row.ids[7]
    rig.points[row.ids[7]] = False
    rig.evict_full(rig.full.capacity)
    assert not rig.cache.add_point(above, 3, swa_pages=swa, state=state)

    assert rig.swa.decref(swa) == 2
    assert rig.states.decref([state]) == 1


def test_references_that_are_given_become_the_points_or_are_dropped(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)

    assert rig.add_point(row, 9, give=True) is True
    [point] = np.flatnonzero(rig.cache.arrays.point("position"))
    state = int(rig.cache.arrays.point("state")[point])
    assert rig.states.references(state) == 1
    free = rig.swa.free, rig.states.free
    assert rig.add_point(row, 9, give=True) is False

    assert (rig.swa.free, rig.states.free) == free
    rig.check()


def test_what_is_given_with_a_fault_stays_with_the_caller(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    swa = rig.swa.alloc(2).tolist()

    with pytest.raises(IntegrityError, match="point at 9"):
        rig.cache.add_point(row.lock.node, 9, swa_pages=swa, state=7, give=True)

    assert rig.swa.decref(swa) == 2
    rig.check()


def test_what_would_be_more_points_than_there_are_units_is_not_taken() -> None:
    spec = TreeSpec(page_size=4, swa_page_size=1, window=1, has_state=False)
    rig = Rig(spec, full=4, swa=2, states=0)
    row = rig.begin(list(range(8)))
    rig.publish(row)
    unit = rig.swa.alloc(1).tolist()

    added = [
        rig.cache.add_point(row.lock.node, position, swa_pages=unit, state=0)
        for position in (1, 2, 3)
    ]

    assert added == [True, True, False]
    assert rig.swa.references(unit[0]) == 3
    rig.evict_swa(swa_pages=2)
    assert rig.swa.decref(unit) == 1


def test_position_zero_has_no_point(rig: Rig) -> None:
    row = rig.begin([1, 2])
    rig.publish(row)

    assert not rig.cache.add_point(row.lock.node, 0, swa_pages=(), state=1)
    assert not rig.cache.add_point(-1, 1, swa_pages=(1,), state=1)


@pytest.mark.parametrize("wrong", ["free state", "no state", "dummy", "state in use", "free page"])
def test_a_point_that_names_wrong_units_takes_nothing(rig: Rig, wrong: str) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    assert rig.add_point(row, 4)
    [point] = np.flatnonzero(rig.cache.arrays.point("position"))
    used = int(rig.cache.arrays.point("state")[point])
    swa, mine = rig.swa.alloc(2).tolist(), int(rig.states.alloc(1)[0])
    state = {"free state": 9, "no state": 99, "dummy": 0, "state in use": used}.get(wrong, mine)
    window = [swa[0], 30] if wrong == "free page" else swa

    with pytest.raises(IntegrityError, match="point at 9: SWA pages"):
        rig.cache.add_point(row.lock.node, 9, swa_pages=window, state=state)
    with pytest.raises(IntegrityError, match="1 SWA pages for the window at 9"):
        rig.cache.add_point(row.lock.node, 9, swa_pages=swa[:1], state=mine)

    assert rig.swa.decref(swa) == 2
    assert rig.states.decref([mine]) == 1
    rig.check()


def test_a_repeated_prompt_finds_its_point_on_the_child_that_begins_where_it_resumes(
    rig: Rig,
) -> None:
    rig.complete([0, 1, 2, 3, 4, 4], 5)
    rig.complete([0, 1, 2, 3, 9, 9])

    match = rig.match([0, 1, 2, 3, 4])

    assert (match.full_tokens, match.start, end_of(rig.cache, match.node)) == (4, 4, 4)
    assert match.point is not None
    assert match.point.position == 5
    row = rig.begin([0, 1, 2, 3, 4])
    assert not rig.evict_full(rig.full.capacity)
    assert rig.cache.points == 1
    assert end_of(rig.cache, _holder(rig, row)) == 6
    rig.finish(row)


def test_a_first_token_that_another_has_a_point_behind_saves_nothing(rig: Rig) -> None:
    rig.complete([5, 6, 7], 1)

    match = rig.match([9, 9])

    assert (match.full_tokens, match.start, match.point) == (0, 0, None)


def test_a_pin_above_the_lock_keeps_nothing_below_itself(rig: Rig) -> None:
    rig.complete(list(range(12)), 3)
    row = rig.begin([0, 1, 2, 50, 51])
    rig.publish(row)

    rig.evict_full(rig.full.capacity)

    assert rig.match(list(range(12))).full_tokens == 4
    rig.check()


def resumes(rig: Rig, shared: int) -> int:
    """Return what a sequence skips that parts from 0, 1, 2 ... after `shared` tokens."""
    return rig.cache.match(np.array([*range(shared), 50, 51])).start


def test_an_exact_point_serves_its_own_position_only_until_a_better_one_replaces_it(
    rig: Rig,
) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    node = row.lock.node
    swa, states = rig.swa.alloc(2).tolist(), rig.states.alloc(2).tolist()
    rig.state_content.update(dict.fromkeys(states, row.ids[7]))

    assert rig.cache.add_point(node, 7, swa_pages=swa, state=states[0], exact=True)
    assert resumes(rig, 7) == 7
    assert resumes(rig, 6) == 0
    assert not rig.cache.add_point(node, 7, swa_pages=swa, state=states[1], exact=True)

    assert rig.cache.add_point(node, 7, swa_pages=swa, state=states[1])
    assert rig.cache.points == 1
    assert resumes(rig, 6) == 6

    rig.points[row.ids[7]] = False
    rig.finish(row)
    rig.evict_swa(states=rig.states.capacity)
    assert rig.swa.decref(swa) == 2
    assert rig.states.decref(states) == 2


def test_an_exact_point_that_is_pinned_is_not_replaced(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    assert rig.add_point(row, 7, exact=True)
    reader = rig.begin([*range(7), 50])
    assert reader.lock.point

    assert rig.add_point(row, 7) is False
    rig.finish(reader)
    assert rig.add_point(row, 7) is True


@pytest.mark.parametrize("replay", [1, 4, 6, 30])
def test_a_replay_is_planned_where_it_computes_fewer_tokens(replay: int) -> None:
    spec = TreeSpec(page_size=4, swa_page_size=2, window=4)
    rig = Rig(spec, full=40, swa=40, states=20, replay_tokens=replay)
    rig.complete(list(range(20)), 9)

    plans = {n: rig.match([*range(n), 50]) for n in range(1, 21)}

    for full, match in plans.items():
        resumes = full >= 9 > full - replay or full == 8
        assert match.start == (min(9, full) if resumes else max(0, full - replay))
        assert (match.point is not None) == resumes


def test_a_replay_is_never_planned_unless_its_length_is_known(rig: Rig) -> None:
    rig.complete(list(range(20)))

    match = rig.match(list(range(20)))

    assert (match.full_tokens, match.point, match.start) == (19, None, 0)


@pytest.mark.parametrize("exact", [False, True])
def test_a_point_behind_a_page_serves_those_who_part_before_it_unless_it_is_exact(
    rig: Rig, exact: bool
) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    rig.add_point(row, 5, exact=exact)

    match = rig.match([0, 1, 2, 3, 50, 51])

    assert (match.full_tokens, match.start) == (4, 0 if exact else 4)
    rig.finish(row)


@pytest.mark.parametrize("exact", [False, True])
def test_a_point_on_a_sibling_right_behind_the_match_serves_it_unless_it_is_exact(
    rig: Rig, exact: bool
) -> None:
    row = rig.begin([*range(1, 8), 0])
    rig.publish(row)
    rig.add_point(row, 7, exact=exact)
    rig.finish(row)
    other = rig.complete([*range(1, 8), 8])

    match = rig.match(list(range(1, 8)), limit=6)

    assert match.pages[-1] == other[-1]
    assert (match.full_tokens, match.start) == (6, 0 if exact else 6)


def test_points_inside_pages_are_told_apart_by_their_tokens_not_by_their_hash(rig: Rig) -> None:
    rig.cache.arrays.tree.bucket_mask = 0
    for token in (20, 30, 40):
        rig.complete([0, 1, 2, 3, token, token, token], 6)

    for token, start in ((30, 6), (20, 6), (40, 6), (50, 0)):
        assert rig.match([0, 1, 2, 3, token, token, 60, 61]).start == start
    for left in (2, 1, 0):
        rig.evict_swa(states=rig.states.free + 1)
        rig.check()
        assert rig.cache.points == left
