"""The tree as people see it: spans without branches, most recently used first."""

import pytest

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import PointKind
from mem_cache.tree.span import Span
from tests.testing.dictionary_model import Rig
from tests.testing.tree_view import check_spans


def _spans(rig: Rig, limit: int = 100) -> list[Span]:
    return rig.cache.spans(limit)[0]


def test_an_empty_tree_has_no_spans(rig: Rig) -> None:
    assert rig.cache.spans(10) == ([], 0)
    rig.match([1, 2, 3])
    rig.complete([1, 2, 3])
    rig.evict_full(rig.full.capacity)
    assert rig.cache.spans(10) == ([], 0)


def test_pages_without_a_branch_are_one_span(rig: Rig) -> None:
    pages = rig.complete(list(range(11)), 4, 9, 11, namespace="a")

    (span,) = _spans(rig)

    first = rig.cache.arrays.node_of[pages[0]]
    assert (span.id, span.parent, span.namespace, span.children) == (first, 0, "a", 0)
    assert (span.start, span.end, span.pages) == (0, 11, tuple(pages))
    assert [point.position for point in span.points] == [4, 9, 11]


def test_there_may_be_more_namespaces_than_pages() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=6, swa=20, states=8)
    for name in map(str, range(10)):
        rig.evict_full(1)
        rig.complete([7] * 3, namespace=name)

    assert sorted(span.namespace for span in _spans(rig)) == ["4", "5", "6", "7", "8", "9"]
    check_spans(rig.cache, 3)


def test_a_branch_parts_spans_and_each_names_the_one_before_it(rig: Rig) -> None:
    first = rig.complete([*range(8), 20, 20])
    second = rig.complete([*range(8), 30, 30, 30, 30, 30])

    top, newest, other = _spans(rig)

    assert (top.pages, top.children, top.end) == (tuple(first[:2]), 2, 8)
    assert (newest.pages, newest.parent, newest.start, newest.end) == (
        tuple(second[2:]),
        top.id,
        8,
        13,
    )
    assert (other.pages, other.parent, other.end) == ((first[2],), top.id, 10)


def test_those_used_last_come_first_each_after_what_leads_to_it(rig: Rig) -> None:
    for token in (20, 30, 40):
        rig.complete([*range(4), *[token] * 4])
    rig.complete([9] * 4)
    rig.match([5])
    rig.match([*range(4), *[30] * 4, 0])

    spans = _spans(rig)

    assert [span.start for span in spans] == [0, 4, 0, 4, 4]
    tokens = [rig.cache.arrays.tokens[span.id, 0] for span in spans]
    assert tokens == [0, 30, 9, 40, 20]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 9])
def test_a_limit_leaves_out_the_least_recent_and_says_how_many(rig: Rig, limit: int) -> None:
    for token in (20, 30, 40):
        rig.complete([*range(4), *[token] * 4])
    rig.complete([9] * 4)

    spans, left_out = rig.cache.spans(limit)

    assert spans == _spans(rig)[:limit]
    assert left_out == max(0, 5 - limit)
    check_spans(rig.cache, limit)


def test_a_deep_path_is_cut_at_its_lower_end(rig: Rig) -> None:
    for depth in range(4, 24, 4):
        rig.complete([*range(depth), 90, 90])
    rig.complete(list(range(24)))

    spans, left_out = rig.cache.spans(3)

    assert [(span.start, span.end) for span in spans] == [(0, 4), (4, 8), (8, 12)]
    assert left_out == 8
    for limit in range(12):
        check_spans(rig.cache, limit)


def test_a_span_without_points_is_a_tombstone_and_says_nothing_of_them(rig: Rig) -> None:
    rig.complete(list(range(10)), 10)
    rig.evict_swa(states=rig.states.capacity)

    assert _spans(rig)[0].points == ()


def test_points_tell_why_they_were_left_and_who_uses_them(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    rig.publish(row, ended=True)
    assert rig.add_point(row, 4, kind=PointKind.BRANCH)
    assert rig.add_point(row, 10, kind=PointKind.REQUEST_END)
    rig.finish(row)
    reader = rig.begin([*range(4), 50])

    span = _spans(rig)[0]

    assert [(p.position, p.kind, p.pins) for p in span.points] == [
        (4, PointKind.BRANCH, 1),
        (10, PointKind.REQUEST_END, 0),
    ]
    # One lock of the reader on the page, and one for its pin.
    assert span.locks == 2
    rig.finish(reader)


def test_age_counts_matches_since_the_last_use(rig: Rig) -> None:
    rig.complete(list(range(8)), 8)
    rig.complete([9] * 4)
    rig.match(list(range(9)))
    for _ in range(7):
        rig.match([9] * 5)

    young, old = _spans(rig)

    assert (young.age, old.age) == (0, 7)
    assert old.points[0].age == 7


def test_what_leads_to_a_span_is_as_young_as_the_youngest_behind_it(rig: Rig) -> None:
    for token in (20, 30):
        rig.complete([*range(4), *[token] * 4])
    for _ in range(5):
        rig.match([*range(4), *[30] * 4, 0])

    assert [span.age for span in _spans(rig)] == [0, 0, 5]
