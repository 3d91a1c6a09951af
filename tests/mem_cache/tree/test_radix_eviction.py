"""What goes first, what stays, and what it costs: pages and locks."""

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Insertion
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.dictionary_model import Rig
from tests.testing.tree_view import full_pages, page_ids, view_pages


def _insert(cache: ShadowRadixCache, tokens: list[int], pages: np.ndarray) -> Insertion:
    return cache.insert(np.array(tokens, np.int32), pages)


def test_pages_are_trimmed_from_the_end_and_only_as_many_as_needed(rig: Rig) -> None:
    rig.complete(list(range(15)), 8, 15)

    assert rig.evict_full(rig.full.free + 1)
    assert rig.match(list(range(16))).full_tokens == 12
    assert rig.cache.points == 1
    assert rig.evict_full(rig.full.free + 2)

    assert rig.match(list(range(16))).full_tokens == 4
    assert rig.cache.points == 0
    assert (rig.cache.evicted_pages, rig.cache.evicted_points) == (3, 2)


def test_the_oldest_leaf_goes_first_and_its_parent_is_next_in_line(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    rig.complete([7] * 8)

    rig.evict_full(rig.full.free + 1)
    assert rig.match([*range(4), 10, 11]).full_tokens == 4
    assert rig.match([7] * 9).full_tokens == 8
    rig.evict_full(rig.full.free + 2)

    assert rig.match([*range(4), 20, 21]).full_tokens == 0
    assert rig.match([7] * 9).full_tokens == 8


def test_a_prefix_used_since_outlives_what_was_below_it(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    rig.complete([7] * 4)
    rig.match([*range(4), 99])

    rig.evict_full(rig.full.free + 3)

    assert rig.match([*range(4), 99]).full_tokens == 4
    assert rig.match([7] * 5).full_tokens == 0


def test_ages_hold_when_there_were_more_matches_than_32_bits_can_count(rig: Rig) -> None:
    rig.cache.arrays.tree.tick = (1 << 32) - 2
    rig.complete([7] * 8, 8)
    for token in range(1, 4):
        rig.complete([token] * 8, 8)

    rig.check()
    rig.evict_swa(states=rig.states.free + 1)
    rig.evict_full(rig.full.free + 2)

    assert rig.match([7] * 9).full_tokens == 0
    assert rig.match([3] * 9).start == 8


def test_only_pages_that_may_go_stand_in_the_lists(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    row = rig.begin([*range(4), 10, 11, 12, 13, 14])

    assert rig.cache.arrays.page_lists["length"].sum() == 1
    assert not rig.evict_full(rig.full.capacity)
    assert rig.cache.arrays.page_lists["length"].sum() == 0
    rig.check()

    rig.finish(row)
    assert rig.evict_full(rig.full.capacity)
    assert rig.cache.tree_pages == 0


def test_a_page_that_lost_its_last_child_is_as_old_as_that_one_was(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    row = rig.begin([*range(4), 10, 11, 12, 13, 14])
    rig.evict_full(rig.full.capacity)
    rig.finish(row)
    rig.complete([7] * 4)

    rig.evict_full(rig.full.free + 2)

    assert rig.match([7] * 5).full_tokens == 4
    assert rig.match([*range(4), 99]).full_tokens == 0
    rig.check()


def test_a_page_that_a_row_holds_too_does_not_count_as_free(rig: Rig) -> None:
    pages = rig.complete([1] * 8)
    rig.complete([2] * 8)
    rig.full.incref(pages)

    assert rig.evict_full(rig.full.free + 2)

    assert rig.cache.tree_pages == 0
    assert rig.cache.evicted_pages == 4
    assert not rig.evict_full(rig.full.free + 1)
    assert rig.full.decref(pages) == 2


def test_a_thousand_leaves_go_one_by_one_in_order_of_use() -> None:
    rig = Rig(TreeSpec(page_size=2, swa_page_size=2, window=2), full=1001, swa=1, states=1)
    cache = rig.cache
    order = np.random.default_rng(0).permutation(1000)
    for number in range(1000):
        pages = rig.full.alloc(2 if number == 0 else 1)
        pages = pages if number == 0 else np.array([1, pages[0]], np.int32)
        _insert(cache, [5, 5, number, number], pages)
        rig.full.decref(pages if number == 0 else pages[1:])
    for number in order:
        cache.match(np.array([5, 5, number, number, 0], np.int32))

    for number in order:
        assert cache.match(np.array([5, 5, number, number], np.int32), limit=2).full_tokens == 2
        oldest = int(cache.arrays.page_lists["oldest"][0])
        assert cache.arrays.tokens[oldest].tolist() == [number, number]
        assert cache.evict_full(rig.full.free + 1)
    assert full_pages(cache) == [1]


def test_evictable_pages_are_those_that_no_lock_protects(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23, 24])
    assert rig.cache.evictable_pages == rig.cache.tree_pages == 4

    row = rig.begin([*range(4), 10, 11, 12, 13])
    assert rig.cache.evictable_pages == 2
    rig.finish(row)
    assert rig.cache.evictable_pages == 4


def test_a_locked_node_and_all_above_it_survive_any_eviction(rig: Rig) -> None:
    rig.complete(list(range(12)))
    rig.complete([*range(8), 90, 91, 92, 93])
    row = rig.begin([*range(8), 90, 91, 92, 93, 94])

    assert not rig.evict_full(rig.full.capacity)

    assert rig.match([*range(8), 90, 91, 92, 93, 94]).full_tokens == 12
    assert rig.match(list(range(12))).full_tokens == 8
    rig.finish(row)
    assert rig.evict_full(rig.full.capacity)


def test_locking_counts_on_one_page_whatever_the_depth(rig: Rig) -> None:
    for length in range(4, 24, 4):
        rig.complete([*range(length), 90 + length])
    row = rig.begin(list(range(20)))

    locks = rig.cache.arrays.page("locks")[page_ids(rig.cache)]

    assert sorted(locks.tolist())[-2:] == [0, 1]
    rig.finish(row)
    rig.check()


def test_a_second_lock_below_a_guarded_page_climbs_no_further(rig: Rig) -> None:
    pages = rig.complete(list(range(20)))
    rows = [rig.begin([*range(16), 90]), rig.begin([*range(16), 91])]

    guards, nodes = rig.cache.arrays.page("guards"), rig.cache.arrays.node_of[pages]

    assert guards[nodes].tolist() == [1, 1, 1, 1, 0]
    assert rig.cache.arrays.page("locks")[nodes].tolist() == [0, 0, 0, 2, 0]
    for row in rows:
        rig.finish(row)
    assert guards[nodes].tolist() == [0] * 5


def test_an_unlocked_node_comes_back_as_the_most_recent(rig: Rig) -> None:
    rig.complete([1] * 4)
    row = rig.begin([1] * 5)
    rig.complete([2] * 4)
    rig.finish(row)

    rig.evict_full(rig.full.free + 1)

    assert rig.match([2] * 5).full_tokens == 0
    assert rig.match([1] * 5).full_tokens == 4


def test_a_lock_is_released_once(rig: Rig) -> None:
    rig.complete([1] * 4)
    lock = rig.cache.lock(rig.match([1] * 5))
    rig.cache.unlock(lock)

    with pytest.raises(IntegrityError, match="released twice"):
        rig.cache.unlock(lock)
    rig.check()


@pytest.mark.parametrize("left", [0, 1])
def test_what_was_evicted_since_the_match_cannot_be_locked(rig: Rig, left: int) -> None:
    rig.complete([1] * 8)
    match = rig.match([1] * 9)
    rig.evict_full(rig.full.capacity - left)

    with pytest.raises(IntegrityError, match="evicted since"):
        rig.cache.lock(match)
    rig.check()


def test_a_point_evicted_since_the_match_cannot_be_locked(rig: Rig) -> None:
    rig.complete([1] * 8, 8)
    match = rig.match([1] * 9)
    rig.evict_swa(states=rig.states.capacity)

    with pytest.raises(IntegrityError, match="resume point, evicted since"):
        rig.cache.lock(match)
    rig.check()


def test_a_lock_on_nothing_costs_nothing_and_leaves_nothing(rig: Rig) -> None:
    locks = [rig.cache.lock(rig.match([1, 2], namespace="new")) for _ in range(2)]
    rig.check()
    assert list(rig.cache.roots) == ["new"]

    for lock in locks:
        rig.cache.unlock(lock)
    assert rig.cache.tree_pages == 0
    rig.check()


def test_reset_forgets_everything_but_refuses_while_something_is_locked(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    row = rig.begin([5])
    with pytest.raises(IntegrityError, match="1 locks"):
        rig.cache.reset()
    rig.check()

    rig.finish(row)
    rig.reset()

    rig.check()
    assert rig.cache.tree_pages == rig.cache.points == 0
    assert view_pages(rig.cache) == []
    assert rig.full.free == rig.full.capacity


def test_a_reset_counts_as_no_eviction(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    rig.complete([30, 31], 2)
    rig.cache.evict_full(rig.full.free + 1)
    counted = rig.cache.evicted_pages, rig.cache.evicted_points
    assert counted == (1, 1)

    rig.reset()

    assert rig.full.free == rig.full.capacity
    assert (rig.cache.evicted_pages, rig.cache.evicted_points) == counted
