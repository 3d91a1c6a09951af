"""Partial pages: read by some, lengthened by their owner, superseded by longer ones."""

import pytest

from tests.testing.dictionary_model import Rig
from tests.testing.tree_view import full_pages, view_pages


def test_extending_a_partial_leaf_replaces_its_page_and_keeps_its_points(rig: Rig) -> None:
    old = rig.complete([1, 2, 3, 4, 5, 6], 6)
    new = rig.complete([1, 2, 3, 4, 5, 6, 7, 8, 9])

    assert new[0] == old[0]
    assert new[1] != old[1]
    assert rig.full.references(old[1]) == 0
    assert full_pages(rig.cache) == new
    assert rig.match([1, 2, 3, 4, 5, 6, 0]).start == 6


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
    before = view_pages(rig.cache)

    rig.complete([1, 2, 3, 4, 5, 6])
    rig.complete([1, 2, 3, 4, 5, 6, 7])
    rig.complete([1, 2])

    assert view_pages(rig.cache) == before


def test_a_partial_page_that_is_read_stays_until_its_reader_goes_then_the_longer_one_serves(
    rig: Rig,
) -> None:
    short = rig.complete([1, 2, 3, 4, 5, 6], 6)
    reader = rig.begin([1, 2, 3, 4, 5, 6, 0])
    longer = rig.complete([1, 2, 3, 4, 5, 6, 7])
    assert set(full_pages(rig.cache)) == {*short, *longer}

    rig.finish(reader)

    assert full_pages(rig.cache) == longer
    assert rig.full.references(short[1]) == 0
    assert rig.match([1, 2, 3, 4, 5, 6, 7, 7]).start == 6
    rig.check()


def test_a_partial_page_that_nobody_reads_goes_as_soon_as_a_longer_one_comes(rig: Rig) -> None:
    slow = rig.begin([1, 2, 3, 4, 5, 6, 7])
    short = rig.complete([1, 2, 3, 4, 5, 6], 6)

    rig.publish(slow)

    assert len(full_pages(rig.cache)) == 2
    assert rig.full.references(short[1]) == 0
    assert rig.match([1, 2, 3, 4, 5, 6, 7, 7]).start == 6
    rig.finish(slow)


@pytest.mark.parametrize("other", [[], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5, 0]])
def test_a_partial_page_stays_if_the_longer_one_went_before_its_reader(
    rig: Rig, other: list[int]
) -> None:
    short = rig.complete([1, 2, 3, 4, 5, 6], 6)
    reader = rig.begin([1, 2, 3, 4, 5, 6, 0])
    rig.complete([1, 2, 3, 4, 5, 6, 7])
    rig.evict_full(rig.full.free + 1)
    assert set(full_pages(rig.cache)) == set(short)
    if other:
        rig.complete(other)

    rig.finish(reader)

    rig.check()
    assert set(short) <= set(full_pages(rig.cache))
    assert rig.match([1, 2, 3, 4, 5, 6, 7, 7]).start == 6
    assert rig.evict_full(rig.full.capacity)


def test_an_own_partial_page_that_was_superseded_is_taken_back_when_it_goes_another_way(
    rig: Rig,
) -> None:
    row = rig.begin([1, 2, 3, 4, 5, 6])
    rig.publish(row)
    own = row.table[1]
    longer = rig.complete([1, 2, 3, 4, 5, 6, 7])

    assert rig.compute(row, [9])
    rig.publish(row)

    assert row.table[1] == own
    assert {own, *longer} == set(full_pages(rig.cache))
    assert rig.match([1, 2, 3, 4, 5, 6, 9, 0]).full_tokens == 7


def test_an_own_partial_page_that_another_finished_first_is_given_up(rig: Rig) -> None:
    row = rig.begin([1, 2, 3, 4, 5, 6])
    rig.publish(row)
    own = row.table[1]
    whole = rig.complete([1, 2, 3, 4, 5, 6, 7, 8])

    assert rig.compute(row, [7, 8])
    rig.publish(row)

    assert row.table == whole == full_pages(rig.cache)
    assert rig.full.references(own) == 0
