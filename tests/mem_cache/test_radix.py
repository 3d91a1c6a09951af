"""The tree by example: match, insert, namespaces, and allocations that fail."""

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.radix import Insertion, ShadowRadixCache
from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig
from tests.testing.faults import fail_call


def _structure(cache: ShadowRadixCache) -> list[tuple[int, list[int], list[int], list[int]]]:
    return [
        (node.start, node.tokens.tolist(), node.pages.tolist(), [p.position for p in node.points])
        for root in cache.roots.values()
        for node in root.depth_first()
    ]


def _insert(cache: ShadowRadixCache, tokens: list[int], pages: np.ndarray) -> Insertion:
    return cache.insert(np.array(tokens, np.int32), pages)


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
    assert rig.cache.nodes == 3
    assert rig.match([1, 2, 3, 4, 5, 6, 7]).node.end == 9


def test_a_split_keeps_the_node_as_the_lower_half(rig: Rig) -> None:
    row = rig.begin([1, 2, 3, 4, 5, 6, 7, 8])
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
    row = rig.begin([1, 2, 3, 4, 5, 6])
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
    reader = rig.begin([1, 2, 3, 4, 5, 6, 0])

    rig.complete(list(range(1, 17)))

    assert reader.lock.node.end == 8
    assert rig.cache.evictable_pages() == 2


def test_own_leaf_grows_in_place_chunk_by_chunk(rig: Rig) -> None:
    row = rig.begin([1, 2, 3, 4, 5])
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
    reader = rig.begin([*range(6), 50, 51, 52, 53])

    rig.complete([*range(12), 60, 61])
    assert reader.lock.node.start == 12
    rig.publish(reader)

    rig.check()
    assert rig.match([*range(6), 50, 51, 52, 53, 54]).full_tokens == 10


def test_insert_begins_where_tokens_are_known_even_if_the_lock_moved_to_a_longer_span(
    rig: Rig,
) -> None:
    rig.complete(list(range(20)))
    row = rig.begin(list(range(6)))
    rig.publish(row)
    assert row.lock.node.end == 20

    rig.complete([*range(12), 60, 61])
    assert rig.compute(row, [50, 51, 52, 53, 54, 55, 56, 57])
    rig.publish(row)

    assert rig.match([*range(6), 50, 51, 52, 53, 54, 55, 56, 57, 58]).full_tokens == 14


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


def test_nothing_matches_across_namespaces_and_empty_ones_are_dropped(rig: Rig) -> None:
    rig.complete([1] * 8, 8, namespace="a")
    rig.complete([1] * 5, namespace="b")

    assert rig.match([1] * 9).full_tokens == 0
    assert rig.match([1] * 9, namespace="b").resume_tokens == 0
    assert rig.cache.tokens_by_namespace() == {"a": 8, "b": 5}

    rig.evict_full(rig.full.capacity - 2)
    assert rig.cache.tokens_by_namespace() == {"b": 5}


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
