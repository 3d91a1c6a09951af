"""The tree by example: match, insert, namespaces, and allocations that fail."""

from collections import Counter

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Insertion
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.dictionary_model import Rig
from tests.testing.faults import fail_call
from tests.testing.tree_view import end_of, full_pages, view_pages


def _insert(cache: ShadowRadixCache, tokens: list[int], pages: np.ndarray) -> Insertion:
    return cache.insert(np.array(tokens, np.int32), pages)


def test_match_ends_inside_a_page_and_names_that_page(rig: Rig) -> None:
    pages = rig.complete([1, 2, 3, 4, 5, 6, 7])

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert match.full_tokens == 6
    assert match.pages.tolist() == pages


def test_one_sequence_may_have_all_pages_that_there_are() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=6, swa=4, states=2)
    pages = rig.complete(list(range(24)), 24)

    assert rig.match(list(range(25))).pages.tolist() == pages
    assert rig.evict_full(6)


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

    assert match.start == match.full_tokens == length - 1
    assert match.point is not None
    assert match.point.position == length


def test_a_point_right_at_the_end_of_the_match_is_preferred_to_the_one_behind(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7], 6, 7)

    match = rig.match([1, 2, 3, 4, 5, 6, 7])

    assert match.point is not None
    assert match.point.position == match.start == 6


def test_where_pages_are_all_there_is_a_request_starts_behind_them() -> None:
    spec = TreeSpec(page_size=4, swa_page_size=2, window=0, has_state=False)
    rig = Rig(spec, full=9, swa=0, states=0, replay_tokens=3)
    rig.complete(list(range(10)))

    assert [rig.match([*range(n), 50]).start for n in (0, 3, 4, 7, 10)] == [0, 3, 4, 7, 10]


def test_no_point_beyond_the_limit_but_the_one_right_behind_it_is_taken(rig: Rig) -> None:
    tokens = list(range(12))
    rig.complete(tokens, 3, 6, 8, 11)

    starts = [rig.match([*tokens, 50], limit=limit).start for limit in range(1, 13)]

    assert starts == [0, 2, 3, 3, 5, 6, 7, 8, 8, 10, 11, 11]


def test_a_point_at_the_end_of_a_page_is_preferred_to_the_one_behind_on_the_next(rig: Rig) -> None:
    rig.complete(list(range(10)), 4, 5)

    match = rig.match([0, 1, 2, 3, 50])

    assert match.point is not None
    assert match.point.position == match.start == 4


def test_a_point_behind_another_token_serves_the_position_of_that_token(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7], 7)

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert match.start == match.full_tokens == 6


def test_a_point_one_further_than_that_serves_nothing(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 8)

    match = rig.match([1, 2, 3, 4, 5, 6, 9, 9])

    assert (match.full_tokens, match.start, match.point) == (6, 0, None)


def test_the_deepest_point_before_the_end_of_the_match_is_taken(rig: Rig) -> None:
    rig.complete(list(range(20)), 3, 9, 18)

    match = rig.match([*range(16), 99, 99])

    assert (match.full_tokens, match.start) == (16, 9)


def test_match_changes_nothing_but_recency(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6, 7, 8], 8)
    rig.complete([1, 2, 3, 4, 5, 9, 9, 9])
    before = view_pages(rig.cache)

    for tokens in ([1, 2, 3, 4, 5, 6, 0], [1, 2, 0], [7], [1, 2, 3, 4, 5, 9, 9, 9, 9, 9]):
        rig.match(tokens)
        rig.match(tokens, namespace="nobody")

    assert view_pages(rig.cache) == before
    rig.check()


def test_of_many_children_with_the_same_first_tokens_the_longest_run_is_found() -> None:
    rig = Rig(TreeSpec(page_size=8, swa_page_size=8, window=8), full=1300, swa=9, states=3)
    for number in range(600):
        rig.complete([7, 7, 7, number // 36, number // 6 % 6, number % 6])

    for number in (0, 35, 36, 217, 599):
        run = [7, 7, 7, number // 36, number // 6 % 6, number % 6]
        assert rig.match([*run, 1, 1]).full_tokens == 6
        assert rig.match([*run[:5], 50, 1]).full_tokens == 5
        assert rig.match([*run[:4], 50, 1]).full_tokens == 4


def test_pages_that_the_tree_has_win_and_duplicates_become_free(rig: Rig) -> None:
    first, second = rig.begin([1] * 9), rig.begin([1] * 9)
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
    assert rig.cache.tree_pages == 5
    assert rig.match([1, 2, 3, 4, 5, 6, 7]).node == rig.cache.arrays.node_of[left[1]]


def test_a_branch_leaves_locks_and_pages_where_they_are(rig: Rig) -> None:
    row = rig.begin([1, 2, 3, 4, 5, 6, 7, 8])
    rig.publish(row)
    node = row.lock.node

    rig.complete([1, 2, 3, 4, 0, 0])

    above, below = rig.cache.arrays.node_of[row.table]
    assert row.lock.node == node == below
    locks = rig.cache.arrays.page("locks")
    assert (locks[node], locks[above]) == (1, 0)
    rig.check()


def test_what_follows_a_page_that_others_hold_is_not_held_by_them(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5, 6])
    reader = rig.begin([1, 2, 3, 4, 5, 6, 0])

    rig.complete(list(range(1, 17)))

    assert end_of(rig.cache, reader.lock.node) == 6
    assert rig.cache.evictable_pages == 3


def test_own_leaf_grows_in_place_chunk_by_chunk(rig: Rig) -> None:
    row = rig.begin([1, 2, 3, 4, 5])
    rig.publish(row)
    for token in range(6, 20):
        assert rig.compute(row, [token])
        rig.publish(row)

    assert full_pages(rig.cache) == row.table
    rig.check()


def test_insert_begins_at_the_lock_even_if_others_branched_above_it_since(rig: Rig) -> None:
    rig.complete(list(range(20)))
    reader = rig.begin([*range(6), 50, 51, 52, 53])

    rig.complete([*range(12), 60, 61])
    rig.complete([*range(5), 70, 71])
    rig.publish(reader)

    rig.check()
    assert rig.match([*range(6), 50, 51, 52, 53, 54]).full_tokens == 10


def test_insert_moves_the_lock_to_the_page_of_its_last_token(rig: Rig) -> None:
    rig.complete(list(range(20)))
    row = rig.begin(list(range(6)))
    rig.publish(row)
    second = rig.cache.arrays.node_of[row.table[0] + 1]
    assert (row.lock.node, rig.cache.evictable_pages) == (second, 3)

    assert rig.compute(row, [50, 51, 52, 53, 54, 55, 56, 57])
    rig.publish(row)

    assert row.lock.node == rig.cache.arrays.node_of[row.table[-1]]
    assert rig.cache.evictable_pages == 4
    assert rig.match([*range(6), 50, 51, 52, 53, 54, 55, 56, 57, 58]).full_tokens == 14


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        ([3, 4], "free unit 3"),
        ([1, 4], "free unit 4"),
        ([1, 0], "no page 0"),
        ([0, 1], "no page 0"),
        ([41, 1], "no page 41"),
        ([2, 1], "page 2 is in the tree already"),
        ([1, 2], "page 2 is in the tree already"),
    ],
)
def test_a_page_that_cannot_be_adopted_is_not_and_nothing_changes(
    rig: Rig, pages: list[int], text: str
) -> None:
    own = rig.full.alloc(2).tolist()
    _insert(rig.cache, [7, 7, 7], np.array([2], np.int32))
    before = view_pages(rig.cache)

    with pytest.raises(IntegrityError, match=text):
        _insert(rig.cache, [1, 2, 3, 4, 5], np.array(pages, np.int32))

    assert view_pages(rig.cache) == before
    rig.cache.check(full=Counter(own), swa=Counter(), states=Counter())
    rig.cache.reset()
    rig.cache.take_removed()
    rig.full.decref(own)


def test_a_page_that_follows_others_is_no_beginning_of_another_sequence(rig: Rig) -> None:
    pages = rig.complete([1, 2, 3, 4, 5])

    with pytest.raises(IntegrityError, match=f"page {pages[1]} is in the tree already"):
        _insert(rig.cache, [5, 6], np.array(pages[1:], np.int32))

    rig.check()


def test_nothing_is_put_below_a_page_that_has_left(rig: Rig) -> None:
    rig.complete([1, 2, 3, 4, 5])
    lock = rig.cache.lock(rig.match([1, 2, 3, 4, 5, 6]))
    rig.cache.unlock(lock)
    rig.evict_full(rig.full.capacity)

    with pytest.raises(IntegrityError, match="below a node that left the tree"):
        rig.cache.insert(np.arange(5), np.array([1, 2]), lock=lock)

    rig.check()


def test_as_many_pages_as_the_tokens_need_must_come(rig: Rig) -> None:
    with pytest.raises(IntegrityError, match="5 tokens cannot have 1 pages"):
        _insert(rig.cache, [1, 2, 3, 4, 5], np.array([1], np.int32))


def test_an_empty_sequence_leaves_no_trace(rig: Rig) -> None:
    found = _insert(rig.cache, [], np.empty(0, np.int32))

    assert (found.new_tokens, len(found.pages)) == (0, 0)
    assert found.node < 0
    assert rig.cache.tree_pages == 0


def test_arrays_of_the_caller_may_change_afterwards() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=40, swa=40, states=20)
    tokens, pages = np.arange(8, dtype=np.int32), rig.full.alloc(2)
    found = rig.cache.insert(tokens, pages)
    match = rig.cache.match(np.arange(9, dtype=np.int32))

    tokens[:] = 0
    pages[:] = 0
    match.pages[:] = 0
    found.pages[:] = 0

    again = rig.cache.match(np.arange(9, dtype=np.int32))
    assert (again.full_tokens, again.pages.tolist()) == (8, [1, 2])


def test_pages_that_left_are_told_once_in_order(rig: Rig) -> None:
    first, second = rig.complete([1] * 8), rig.complete([2] * 8)

    rig.cache.evict_full(rig.full.capacity - 1)

    assert rig.cache.take_removed().tolist() == [*reversed(first), second[1]]
    assert rig.cache.take_removed().tolist() == []
    rig._tree_pages = {second[0]}
    rig._learn_evictions()


def test_more_pages_left_than_anyone_asked_about_is_told_and_harms_nothing() -> None:
    full = PageAllocator("full", 3)
    cache = ShadowRadixCache(
        TreeSpec(1, 1, 1),
        full=full,
        swa=PageAllocator("swa", 1),
        states=PageAllocator("states", 1),
        log_removed=True,
    )
    for _ in range(9):
        page = full.alloc(1)
        _insert(cache, [7], page)
        full.decref(page)
        cache.evict_full(3)

    with pytest.raises(IntegrityError, match="9 pages left"):
        cache.take_removed()
    assert cache.take_removed().tolist() == []
    cache.check(full=Counter(), swa=Counter(), states=Counter())


def test_no_failed_allocation_leaves_anything_behind() -> None:
    number, raised = 0, True
    while raised:
        number += 1
        rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=7, states=3)
        with fail_call(
            PageAllocator, "alloc", number=number, error=lambda: OutOfPages("any", 1, 0)
        ) as count:
            _scenario(rig)
        raised = count.raised
        for row in list(rig.rows):
            rig.finish(row)
        rig.check()
        rig.reset()
        assert rig.full.free + rig.swa.free + rig.states.free == 9 + 7 + 3
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
