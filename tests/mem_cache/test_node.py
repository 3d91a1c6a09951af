"""Spans split, grow and shrink together with their pages and resume points."""

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.node import Node, Point, Root, deepest_point, walk
from mem_cache.resume_point import ResumePoint


def _below(parent: Node, tokens: list[int], pages: list[int], *points: int) -> Node:
    node = Node(4, parent.end, np.array(tokens, np.int32), np.array(pages, np.int32))
    parent.adopt(node)
    for position in points:
        node.add_point(ResumePoint(position, node, swa_pages=(), ring=1))
    return node


def _positions(points: list[Point]) -> list[int]:
    return [point.position for point in points]


def test_a_root_is_empty_and_always_in_the_tree() -> None:
    root = Root(4, "a")

    assert (root.start, root.end, root.is_root, root.in_tree) == (0, 0, True, True)
    assert list(root.depth_first()) == [root]


def test_split_shares_out_tokens_pages_points_and_pins() -> None:
    root = Root(4, "")
    node = _below(root, list(range(10)), [5, 6, 7], 10, 4, 3, 6)
    node.points[0].swa_lock_ref = 2
    node.full_lock_ref = 3

    upper = node.split(4)

    assert (upper.start, upper.end, upper.pages.tolist()) == (0, 4, [5])
    assert (node.start, node.end, node.pages.tolist()) == (4, 10, [6, 7])
    assert (_positions(upper.points), _positions(node.points)) == ([3, 4], [6, 10])
    assert (upper.full_lock_ref, node.full_lock_ref) == (2, 1)
    assert all(point.node is upper for point in upper.points)
    assert list(root.depth_first()) == [root, upper, node]
    assert (node.parent, upper.parent) == (upper, root)


@pytest.mark.parametrize("position", [0, 3, 8, 12])
def test_split_happens_only_at_page_boundaries_inside_the_span(position: int) -> None:
    node = _below(Root(4, ""), list(range(8)), [5, 6])

    with pytest.raises(IntegrityError, match=r"\[0, 8\) cannot be split at"):
        node.split(position)


def test_a_root_cannot_be_split_nor_trimmed() -> None:
    with pytest.raises(IntegrityError, match="cannot be split"):
        Root(4, "").split(4)
    with pytest.raises(IntegrityError, match="cannot be removed"):
        Root(4, "").trim(0)


def test_a_node_with_children_cannot_be_removed() -> None:
    node = _below(Root(4, ""), list(range(4)), [5])
    _below(node, [1], [6])

    with pytest.raises(IntegrityError, match="no leaf"):
        node.trim(0)


def test_extending_inside_the_first_page_changes_the_key() -> None:
    root = Root(4, "")
    node = _below(root, [1, 2], [5])

    assert node.extend(np.array([3, 4, 9], np.int32), np.array([6, 7], np.int32)) == 5

    assert node.pages.tolist() == [6, 7]
    assert root.children.nearest(node.key) == (node, 4)
    assert list(root.children.sorted_keys()) == [node.key]


def test_extending_a_whole_span_replaces_nothing() -> None:
    node = _below(Root(4, ""), [1, 2, 3, 4], [5])

    assert node.extend(np.array([9], np.int32), np.array([6], np.int32)) == 0
    assert node.pages.tolist() == [5, 6]


def test_trim_takes_pages_and_the_points_behind_the_new_end() -> None:
    node = _below(Root(4, ""), list(range(10)), [5, 6, 7], 4, 8, 9)

    pages, points = node.trim(2)

    assert (pages.tolist(), _positions(points)) == ([7], [9])
    assert (node.end, _positions(node.points)) == (8, [4, 8])
    assert node.in_tree


def test_a_node_that_leaves_hands_shared_points_to_a_sibling() -> None:
    root = Root(4, "")
    node = _below(root, [1, 2, 3, 4, 5], [5, 6], 1, 2, 3, 4, 5)
    sibling = _below(root, [1, 2, 9, 9], [7], 3)

    pages, points = node.trim(0)

    assert not node.in_tree
    assert (pages.tolist(), _positions(points)) == ([5, 6], [3, 4, 5])
    assert _positions(sibling.points) == [1, 2, 3]
    assert all(point.node is sibling for point in sibling.points)
    assert root.children.deepest_head(np.array([1, 2, 3], np.int32).tobytes()) is sibling.points[1]


def test_tombstone_says_that_there_is_no_resume_point() -> None:
    node = _below(Root(4, ""), [1, 2], [5])
    assert node.tombstone

    point: Point = ResumePoint(2, node, swa_pages=(), ring=1)
    node.add_point(point)
    assert not node.tombstone

    node.remove_point(point)
    assert node.tombstone
    assert node.point_at(2) is None


def test_walk_tells_the_nodes_met_and_how_far() -> None:
    root = Root(4, "")
    node = _below(root, [1, 2, 3, 4], [5])
    leaf = _below(node, [5, 6], [6])

    for tokens, path, run in (
        ([], [root], 0),
        ([9], [root], 0),
        ([1, 2, 9], [root, node], 2),
        ([1, 2, 3, 4, 9], [root, node], 4),
        ([1, 2, 3, 4, 5, 6, 7], [root, node, leaf], 6),
    ):
        assert walk(root, np.array(tokens, np.int32)) == (path, run)
    assert walk(node, np.array([1, 2, 3, 4, 5], np.int32)) == ([node, leaf], 5)


def test_deepest_point_looks_past_tombstones_and_one_position_on() -> None:
    root = Root(4, "")
    node = _below(root, [1, 2, 3, 4], [5], 3)
    leaf = _below(node, [5, 6, 7, 8], [6], 7)
    path = [root, node, leaf]

    assert deepest_point(path, 5) is node.points[0]
    assert deepest_point(path, 6) is leaf.points[0]
    assert deepest_point(path, 7) is leaf.points[0]
    assert deepest_point(path, 0) is None
