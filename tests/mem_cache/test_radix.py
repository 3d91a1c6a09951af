"""The tree by example: match, insert, lock, evict, resume points, namespaces."""

from collections.abc import Iterator

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.node import Node
from mem_cache.radix import Insertion, Lock, ShadowRadixCache
from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig, Row
from tests.testing.faults import fail_call


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Pages of 4 tokens, SWA pages of 2, a window of 4; verified when the test is done."""
    made = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=40, swa=40, rings=20)
    yield made
    made.check()


def _begin(rig: Rig, tokens: list[int], *, namespace: str = "") -> Row:
    row = rig.start(tokens, namespace=namespace)
    assert row is not None
    return row


def _structure(cache: ShadowRadixCache) -> list[tuple[int, list[int], list[int], list[int]]]:
    return [
        (node.start, node.tokens.tolist(), node.pages.tolist(), [p.position for p in node.points])
        for root in cache.roots.values()
        for node in root.depth_first()
    ]


def _insert(cache: ShadowRadixCache, tokens: list[int], pages: np.ndarray) -> Insertion:
    return cache.insert(np.array(tokens, np.int32), pages)


# Match


def test_a_chain_with_one_resume_point_at_its_end_matches_wholly_only_at_its_end() -> None:
    rig = Rig(TreeSpec(page_size=1, swa_page_size=1, window=4), full=9, swa=9, rings=3)
    rig.complete([1, 2])
    rig.complete([1, 2, 3, 4])
    rig.complete([1, 2, 3, 4, 5, 6], 6)

    whole = rig.match([1, 2, 3, 4, 5, 6], limit=6)
    assert (whole.full_tokens, whole.resume_tokens) == (6, 6)

    part = rig.match([1, 2, 3, 4], limit=4)
    assert (part.full_tokens, part.resume_tokens, part.point) == (4, 0, None)


def test_match_ends_inside_a_page_and_names_that_page(rig: Rig) -> None:
    pages = rig.complete([1, 2, 3, 4, 5, 6, 7])

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert match.full_tokens == 6
    assert match.pages.tolist() == pages


def test_match_leaves_one_token_to_compute_unless_told_otherwise(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5])

    assert rig.match([1, 2, 3, 4, 5]).full_tokens == 4
    assert rig.match([1, 2, 3, 4, 5], limit=5).full_tokens == 5
    assert rig.match([1, 2, 3, 4, 5], limit=2).full_tokens == 2
    assert rig.match([1, 2, 3, 4, 5], limit=0).pages.tolist() == []
    assert rig.match([]).full_tokens == 0


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_a_repeated_prompt_resumes_one_token_before_the_point_at_its_end(
    rig: Rig, length: int
) -> None:
    prompt = list(range(length))
    rig.complete(prompt, length)

    match = rig.match(prompt)

    assert match.resume_tokens == match.full_tokens == length - 1
    assert match.point is not None
    assert match.point.position == length


def test_a_point_right_at_the_end_of_the_match_is_preferred_to_the_one_behind(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7], 6, 7)

    match = rig.match([1, 2, 3, 4, 5, 6, 7])

    assert match.point is not None
    assert match.point.position == match.resume_tokens == 6


def test_a_point_behind_another_token_serves_the_position_of_that_token(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7], 7)

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert match.resume_tokens == match.full_tokens == 6


def test_a_point_one_further_than_that_serves_nothing(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 8)

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert (match.full_tokens, match.resume_tokens, match.point) == (6, 0, None)


def test_the_deepest_point_before_the_end_of_the_match_is_taken(rig: Rig) -> None:
    rig.complete(list(range(20)), 3, 9, 18)

    match = rig.match([*range(16), 99, 99])

    assert (match.full_tokens, match.resume_tokens) == (16, 9)


def test_match_changes_nothing_but_recency(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 8)
    rig.complete([1, 2, 3, 4, 5, 9, 9, 9])
    before = _structure(rig.cache)

    for tokens in ([1, 2, 3, 4, 5, 6, 0], [1, 2, 0], [7], [1, 2, 3, 4, 5, 9, 9, 9, 9, 9]):
        rig.match(tokens)
        rig.match(tokens, namespace="nobody")

    assert _structure(rig.cache) == before
    rig.check()


def test_of_many_children_with_the_same_first_tokens_the_longest_run_is_found() -> None:
    rig = Rig(TreeSpec(page_size=8, swa_page_size=8, window=8), full=1300, swa=9, rings=3)
    for number in range(600):
        rig.complete([7, 7, 7, number // 36, number // 6 % 6, number % 6])

    for number in (0, 35, 36, 217, 599):
        run = [7, 7, 7, number // 36, number // 6 % 6, number % 6]
        assert rig.match([*run, 1, 1]).full_tokens == 6
        assert rig.match([*run[:5], 50, 1]).full_tokens == 5
        assert rig.match([*run[:4], 50, 1]).full_tokens == 4


# Insert


def test_pages_that_the_tree_has_win_and_duplicates_become_free(rig: Rig) -> None:
    first, second = _begin(rig, [1] * 9), _begin(rig, [1] * 9)
    rig.publish(first)
    free = rig.full.free

    rig.publish(second)

    assert second.table[:2] == first.table[:2]
    assert second.table[2] != first.table[2]
    assert rig.full.free == free + 2
    rig.check()


def test_sequences_that_part_inside_a_page_share_only_the_pages_before(rig: Rig) -> None:
    left = rig.complete([1, 2, 3, 4, 5, 6, 7, 8, 9])
    right = rig.complete([1, 2, 3, 4, 5, 6, 0, 0, 0])

    assert right[0] == left[0]
    assert not {*right[1:]} & {*left[1:]}
    assert rig.cache.nodes == 3
    assert rig.match([1, 2, 3, 4, 5, 6, 7]).node.end == 9


def test_a_split_keeps_the_node_as_the_lower_half(rig: Rig) -> None:
    row = _begin(rig, [1, 2, 3, 4, 5, 6, 7, 8])
    rig.publish(row)
    node = row.lock.node

    rig.complete([1, 2, 3, 4, 0, 0])

    assert row.lock.node is node
    assert (node.start, node.end) == (4, 8)
    assert node.parent is not None
    assert node.parent.full_lock_ref == 0
    rig.check()


def test_extending_a_partial_leaf_replaces_its_page_and_keeps_its_points(rig: Rig) -> None:
    old = rig.complete([1, 2, 3, 4, 5, 6], 6)
    new = rig.complete([1, 2, 3, 4, 5, 6, 7, 8, 9])

    assert new[0] == old[0]
    assert new[1] != old[1]
    assert rig.full.references(old[1]) == 0
    assert rig.cache.nodes == 1
    assert rig.match([1, 2, 3, 4, 5, 6, 0]).resume_tokens == 6


def test_a_row_goes_on_writing_the_partial_page_that_it_has_published(rig: Rig) -> None:
    row = _begin(rig, [1, 2, 3, 4, 5, 6])
    rig.publish(row)
    page = row.table[1]
    assert rig.full.references(page) == 2

    assert rig.compute(row, [7])
    assert rig.match([1, 2, 3, 4, 5, 6, 7, 7]).full_tokens == 6
    rig.publish(row)

    assert row.table[1] == page
    assert rig.full.references(page) == 2
    assert rig.match([1, 2, 3, 4, 5, 6, 7, 7]).full_tokens == 7


def test_a_shorter_or_equal_partial_page_changes_nothing(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7])
    before = _structure(rig.cache)

    rig.complete([1, 2, 3, 4, 5, 6])
    rig.complete([1, 2, 3, 4, 5, 6, 7])
    rig.complete([1, 2])

    assert _structure(rig.cache) == before


def test_what_is_appended_to_a_leaf_that_others_hold_is_not_held_by_them(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6])
    reader = _begin(rig, [1, 2, 3, 4, 5, 6, 0])

    rig.complete(list(range(1, 17)))

    assert reader.lock.node.end == 8
    assert rig.cache.evictable_pages() == 2


def test_own_leaf_grows_in_place_chunk_by_chunk(rig: Rig) -> None:
    row = _begin(rig, [1, 2, 3, 4, 5])
    rig.publish(row)
    for token in range(6, 20):
        assert rig.compute(row, [token])
        rig.publish(row)

    assert rig.cache.nodes == 1
    rig.check()


def test_insert_begins_at_the_lock_even_after_its_node_was_split_beyond_the_match(
    rig: Rig,
) -> None:
    rig.complete(list(range(20)))
    reader = _begin(rig, [*range(6), 50, 51, 52, 53])

    rig.complete([*range(12), 60, 61])
    assert reader.lock.node.start == 12
    rig.publish(reader)

    rig.check()
    assert rig.match([*range(6), 50, 51, 52, 53, 54]).full_tokens == 10


def test_a_page_that_is_free_is_not_adopted_and_nothing_changes(rig: Rig) -> None:
    with pytest.raises(IntegrityError, match="free unit 3"):
        _insert(rig.cache, [1, 2, 3, 4, 5], np.array([3, 4], np.int32))

    assert rig.cache.roots == {}
    rig.check()


def test_as_many_pages_as_the_tokens_need_must_come(rig: Rig) -> None:
    with pytest.raises(IntegrityError, match="5 tokens cannot have 1 pages"):
        _insert(rig.cache, [1, 2, 3, 4, 5], np.array([1], np.int32))


def test_an_empty_sequence_leaves_no_trace(rig: Rig) -> None:
    found = _insert(rig.cache, [], np.empty(0, np.int32))

    assert (found.new_tokens, len(found.pages), found.node.is_root) == (0, 0, True)
    assert rig.cache.roots == {}


def test_arrays_of_the_caller_may_change_afterwards() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=40, swa=40, rings=20)
    tokens, pages = np.arange(8, dtype=np.int32), rig.full.alloc(2)
    found = rig.cache.insert(tokens, pages)
    match = rig.cache.match(np.arange(9, dtype=np.int32))

    tokens[:] = 0
    pages[:] = 0
    match.pages[:] = 0
    found.pages[:] = 0

    again = rig.cache.match(np.arange(9, dtype=np.int32))
    assert (again.full_tokens, again.pages.tolist()) == (8, [1, 2])


# Resume points


def test_a_point_on_one_sibling_serves_all_that_share_the_tokens_before_it(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6)
    for last in range(10, 15):
        rig.complete([1, 2, 3, 4, 5, 6, last, 8, 9, 9])

    for last in range(9, 16):
        assert rig.match([1, 2, 3, 4, 5, 6, last, 8, 9, 9, 9]).resume_tokens == 6
    assert rig.cache.points == 1


def test_the_same_tokens_get_one_point_whichever_sibling_it_is_offered_on(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 6)
    row = _begin(rig, [1, 2, 3, 4, 5, 6, 0, 0])
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
    one, two = _begin(rig, list(range(12))), _begin(rig, list(range(12)))

    assert not rig.evict_swa(rings=rig.rings.capacity)
    rig.cache.unlock_point(one.lock)
    rig.cache.unlock_point(one.lock)
    assert not rig.evict_swa(rings=rig.rings.capacity)
    rig.cache.unlock_point(two.lock)

    assert rig.evict_swa(rings=rig.rings.capacity)
    rig.check()


def test_a_pin_keeps_the_node_of_the_point_although_the_row_went_elsewhere(rig: Rig) -> None:
    rig.complete(list(range(10)), 7)
    row = _begin(rig, [*range(7), 50, 51])
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
    row = _begin(rig, list(range(10)))
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
    row = _begin(rig, [1, 2])
    rig.publish(row)

    assert not rig.cache.add_point(row.lock.node, 0, swa_pages=(), ring=1)


def test_a_point_that_names_free_units_takes_nothing(rig: Rig) -> None:
    row = _begin(rig, list(range(10)))
    rig.publish(row)
    swa = rig.swa.alloc(3).tolist()

    with pytest.raises(IntegrityError, match="3 SWA pages for the window at 8"):
        rig.cache.add_point(row.lock.node, 8, swa_pages=swa, ring=1)
    with pytest.raises(IntegrityError, match="pool rings: reference to free unit 1"):
        rig.cache.add_point(row.lock.node, 9, swa_pages=swa, ring=1)

    assert rig.swa.decref(swa) == 3
    rig.check()


# Locks


def test_a_locked_node_and_all_above_it_survive_any_eviction(rig: Rig) -> None:
    rig.complete(list(range(12)))
    rig.complete([*range(8), 90, 91, 92, 93])
    row = _begin(rig, [*range(8), 90, 91, 92, 93, 94])

    assert not rig.evict_full(rig.full.capacity)

    assert rig.match([*range(8), 90, 91, 92, 93, 94]).full_tokens == 12
    assert rig.match(list(range(12))).full_tokens == 8
    rig.finish(row)
    assert rig.evict_full(rig.full.capacity)


def test_locking_counts_on_one_node_whatever_the_depth(rig: Rig) -> None:
    for length in range(4, 24, 4):
        rig.complete([*range(length), 90 + length])
    row = _begin(rig, list(range(20)))

    counts = [n.full_lock_ref for root in rig.cache.roots.values() for n in root.depth_first()]

    assert sorted(counts)[-2:] == [0, 1]
    rig.finish(row)
    rig.check()


def test_an_unlocked_node_comes_back_as_the_most_recent(rig: Rig) -> None:
    rig.complete([1] * 4)
    row = _begin(rig, [1] * 5)
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
    with pytest.raises(IntegrityError, match="in force"):
        rig.cache.relock(lock, lock.node)
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
    rig.evict_swa(rings=rig.rings.capacity)

    with pytest.raises(IntegrityError, match="resume point 8"):
        rig.cache.lock(match)
    rig.check()


def test_a_lock_on_nothing_costs_nothing_and_leaves_nothing(rig: Rig) -> None:
    locks = [rig.cache.lock(rig.match([1, 2], namespace="new")) for _ in range(2)]
    rig.check()
    assert list(rig.cache.roots) == ["new"]

    for lock in locks:
        rig.cache.unlock(lock)
    assert rig.cache.roots == {}
    rig.check()


def test_reset_forgets_everything_but_refuses_while_something_is_locked(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    row = _begin(rig, [5])
    with pytest.raises(IntegrityError, match="1 locks"):
        rig.cache.reset()
    rig.check()

    rig.finish(row)
    rig.reset()

    rig.check()
    assert rig.cache.tree_pages == rig.cache.nodes == rig.cache.points == 0
    assert rig.full.free == rig.full.capacity


# Eviction


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


def test_an_inner_node_is_passed_once_not_on_every_call(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    row = _begin(rig, [*range(4), 10, 11, 12, 13, 14])

    assert not rig.evict_full(rig.full.capacity)
    assert len(rig.cache.full_lru) == 0
    rig.check()

    rig.finish(row)
    assert rig.evict_full(rig.full.capacity)
    assert rig.cache.roots == {}


def test_a_passed_inner_node_returns_when_its_last_child_goes(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23])
    row = _begin(rig, [*range(4), 10, 11, 12, 13, 14])
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


def test_a_trimmed_leaf_does_not_keep_a_long_prompt_alive() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=4, window=4), full=300, swa=1, rings=1)
    rig.complete([1] * 1200)
    node = rig.match([1] * 1200).node

    for _ in range(298):
        rig.evict_full(rig.full.free + 1)
        base = node.tokens.base
        assert base is None or base.nbytes <= 2 * node.tokens.nbytes


def test_a_thousand_leaves_go_one_by_one_in_order_of_use() -> None:
    rig = Rig(TreeSpec(page_size=2, swa_page_size=2, window=2), full=1001, swa=1, rings=1)
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
        last = cache.full_lru.oldest
        assert last is not None
        assert last.tokens.tolist() == [number, number]
        assert cache.evict_full(rig.full.free + 1)
    assert cache.nodes == 1


def test_evictable_pages_are_those_that_no_lock_protects(rig: Rig) -> None:
    rig.complete([*range(4), 10, 11, 12, 13])
    rig.complete([*range(4), 20, 21, 22, 23, 24])
    assert rig.cache.evictable_pages() == rig.cache.tree_pages == 4

    row = _begin(rig, [*range(4), 10, 11, 12, 13])
    assert rig.cache.evictable_pages() == 2
    rig.finish(row)
    assert rig.cache.evictable_pages() == 4


# Namespaces


def test_nothing_matches_across_namespaces_and_empty_ones_are_dropped(rig: Rig) -> None:
    rig.complete([1] * 8, 8, namespace="a")
    rig.complete([1] * 5, namespace="b")

    assert rig.match([1] * 9).full_tokens == 0
    assert rig.match([1] * 9, namespace="b").resume_tokens == 0
    assert rig.cache.tokens_by_namespace() == {"a": 8, "b": 5}

    rig.evict_full(rig.full.capacity - 2)
    assert rig.cache.tokens_by_namespace() == {"b": 5}


# Faults


def test_no_failed_allocation_leaves_anything_behind() -> None:
    number, raised = 0, True
    while raised:
        number += 1
        rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=7, rings=3)
        with fail_call(
            PageAllocator, "alloc", number=number, error=lambda: OutOfPages("any", 1, 0)
        ) as count:
            _scenario(rig)
        raised = count.raised
        for row in list(rig.rows):
            rig.finish(row)
        rig.check()
        rig.reset()
        assert rig.full.free + rig.swa.free + rig.rings.free == 9 + 7 + 3
    assert number > 20


def _scenario(rig: Rig) -> None:
    """Three turns, a fork inside a page, points, and a pool that is too small for all of it."""
    for tokens in ([1] * 7, [1] * 10, [1, 1, 1, 1, 1, 2, 2, 2], [1] * 14, [3] * 9):
        row = rig.start(tokens)
        if row is None:
            continue
        rig.publish(row)
        rig.add_point(row, len(tokens))
        rig.check()
        if rig.compute(row, [4, 4, 4]):
            rig.publish(row)
            rig.add_point(row, len(tokens) + 3)
            rig.finish(row)
        rig.check()


def test_handles_are_what_the_annotations_say(rig: Rig) -> None:
    row = _begin(rig, [1, 2])
    rig.publish(row)

    assert isinstance(row.lock, Lock)
    assert isinstance(row.lock.node, Node)
