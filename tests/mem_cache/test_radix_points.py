"""Resume points by example: shared, moved, dropped, revived, pinned."""

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from tests.testing.dictionary_model import Rig


def test_a_point_on_one_sibling_serves_all_that_share_the_tokens_before_it(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6)
    for last in range(10, 15):
        rig.complete([1, 2, 3, 4, 5, 6, last, 8, 9, 9])

    for last in range(9, 16):
        assert rig.match([1, 2, 3, 4, 5, 6, last, 8, 9, 9, 9]).resume_tokens == 6
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

    assert rig.match([1, 2, 3, 4, 5, 6, 7, 8]).resume_tokens == 6
    assert rig.cache.points == 1
    rig.check()


def test_dropping_points_leaves_a_tombstone_that_a_new_point_revives(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    rig.evict_swa(swa_pages=rig.swa.capacity)
    node = rig.match(list(range(11))).node
    assert node.tombstone

    rig.complete(list(range(10)), 10)

    assert not node.tombstone
    assert rig.match(list(range(11))).resume_tokens == 10


def test_window_pages_are_shared_and_free_with_the_last_point_that_names_them(rig: Rig) -> None:
    rig.complete(list(range(12)), 8, 9)
    # [4, 8) and [5, 9): SWA pages 2, 3 and 2, 3, 4, of which the first two are shared.
    assert rig.swa.free == rig.swa.capacity - 3

    rig.evict_swa(swa_pages=rig.swa.free, rings=rig.rings.free + 1)
    assert rig.swa.free == rig.swa.capacity - 3

    rig.evict_swa(swa_pages=rig.swa.free + 1)
    assert rig.swa.free == rig.swa.capacity


def test_the_point_used_longest_ago_goes_first(rig: Rig) -> None:
    rig.complete(list(range(10)), 5, 10)
    rig.complete([9, 9, 9], 3)
    rig.match([0, 1, 2, 3, 4, 99])

    rig.evict_swa(rings=rig.rings.free + 1)

    assert [p.position for p in rig.cache.swa_lru] == [3, 5]


def test_a_pinned_point_stays_until_its_last_user_lets_go(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    one, two = rig.begin(list(range(12))), rig.begin(list(range(12)))

    assert not rig.evict_swa(rings=rig.rings.capacity)
    rig.cache.unlock_point(one.lock)
    rig.cache.unlock_point(one.lock)
    assert not rig.evict_swa(rings=rig.rings.capacity)
    rig.cache.unlock_point(two.lock)

    assert rig.evict_swa(rings=rig.rings.capacity)
    rig.check()


def test_a_pin_keeps_the_node_of_the_point_although_the_row_went_elsewhere(rig: Rig) -> None:
    rig.complete(list(range(10)), 7)
    row = rig.begin([*range(7), 50, 51])
    rig.publish(row)
    assert row.lock.point is not None
    assert row.lock.point.node is not row.lock.node

    assert not rig.evict_full(rig.full.capacity)
    assert row.lock.point.alive

    rig.cache.unlock_point(row.lock)
    assert not rig.evict_full(rig.full.capacity)
    assert rig.match([*range(9)]).full_tokens == 7
    rig.check()


def test_no_point_is_added_where_the_tokens_are_gone(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    node = row.lock.node
    rig.finish(row)
    swa, ring = rig.swa.alloc(3).tolist(), int(rig.rings.alloc(1)[0])

    rig.evict_full(rig.full.capacity - 2)
    assert not rig.cache.add_point(node, 9, swa_pages=swa, ring=ring)
    assert rig.cache.add_point(node, 7, swa_pages=swa, ring=ring)
    rig.points.update(row.ids[7:8])
    rig.evict_full(rig.full.capacity)
    assert not rig.cache.add_point(node, 3, swa_pages=swa[:2], ring=ring)

    assert rig.swa.decref(swa) == 3
    assert rig.rings.decref([ring]) == 1


def test_position_zero_has_no_point(rig: Rig) -> None:
    row = rig.begin([1, 2])
    rig.publish(row)

    assert not rig.cache.add_point(row.lock.node, 0, swa_pages=(), ring=1)


def test_a_point_that_names_free_units_takes_nothing(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    swa = rig.swa.alloc(3).tolist()

    with pytest.raises(IntegrityError, match="3 SWA pages for the window at 8"):
        rig.cache.add_point(row.lock.node, 8, swa_pages=swa, ring=1)
    with pytest.raises(IntegrityError, match="pool rings: reference to free unit 1"):
        rig.cache.add_point(row.lock.node, 9, swa_pages=swa, ring=1)

    assert rig.swa.decref(swa) == 3
    rig.check()


def test_a_repeated_prompt_finds_its_point_on_the_child_that_begins_where_it_resumes(
    rig: Rig,
) -> None:
    rig.complete([0, 1, 2, 3, 4, 4], 5)
    rig.complete([0, 1, 2, 3, 9, 9])

    match = rig.match([0, 1, 2, 3, 4])

    assert (match.full_tokens, match.resume_tokens, match.node.end) == (4, 4, 4)
    assert match.point is not None
    assert match.point.node.start == 4
    lock = rig.cache.lock(match)
    assert not rig.evict_full(rig.full.capacity)
    assert match.point.alive
    rig.cache.unlock(lock)


def test_a_split_that_moves_the_only_pin_up_leaves_the_lower_half_evictable(rig: Rig) -> None:
    late = rig.begin([*range(8), 60])
    rig.complete(list(range(12)), 3)
    row = rig.begin([0, 1, 2, 50, 51])
    rig.publish(row)

    rig.publish(late)
    rig.check()

    rig.evict_full(rig.full.capacity)
    assert rig.match(list(range(12))).full_tokens == 8


def resumes(rig: Rig, shared: int) -> int:
    """Return what a sequence skips that parts from 0, 1, 2 ... after `shared` tokens."""
    return rig.cache.match(np.array([*range(shared), 50, 51])).resume_tokens


def test_an_exact_point_serves_its_own_position_only_until_a_better_one_replaces_it(
    rig: Rig,
) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row)
    node = row.lock.node
    swa, ring = rig.swa.alloc(3).tolist(), int(rig.rings.alloc(1)[0])

    assert rig.cache.add_point(node, 7, swa_pages=swa, ring=ring, exact=True)
    rig.points.update(row.ids[7:8])
    assert resumes(rig, 7) == 7
    assert resumes(rig, 6) == 0
    assert not rig.cache.add_point(node, 7, swa_pages=swa, ring=ring, exact=True)

    assert rig.cache.add_point(node, 7, swa_pages=swa, ring=ring)
    assert rig.cache.points == 1
    assert resumes(rig, 6) == 6

    rig.finish(row)
    rig.evict_swa(rings=rig.rings.capacity)
    assert rig.swa.decref(swa) == 3
    assert rig.rings.decref([ring]) == 1
