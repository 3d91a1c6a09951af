"""A lock knows where its request's tokens may part from the node it holds."""

import numpy as np

from mem_cache.handles import Lock
from mem_cache.node import Node, Root
from mem_cache.resume_point import ResumePoint


def _leaf(pages: int) -> Node:
    size = 4 * pages
    node = Node(4, 0, np.arange(size, dtype=np.int32), np.arange(1, pages + 1, dtype=np.int32))
    Root(4, "").adopt(node)
    return node


def test_an_insertion_begins_above_the_locked_node() -> None:
    leaf = _leaf(4)
    upper = leaf.split(8)

    assert Lock(leaf, None, 9).known_node(20) is upper
    assert Lock(leaf, None, 8).known_node(20) is upper


def test_it_begins_higher_if_the_node_was_split_behind_the_known_tokens() -> None:
    leaf = _leaf(4)
    lock = Lock(leaf, None, 6)
    upper = leaf.split(8)

    assert lock.known_node(20) is upper.parent


def test_it_begins_higher_for_a_sequence_that_ends_before_the_node() -> None:
    leaf = _leaf(4)
    upper = leaf.split(8)

    assert Lock(leaf, None, 12).known_node(8) is upper.parent
    assert Lock(leaf, None, 12).known_node(9) is upper


def test_a_lock_on_a_root_begins_there() -> None:
    root = Root(4, "")

    assert Lock(root, None, 0).known_node(5) is root


def test_a_lock_counts_its_node_and_its_pin() -> None:
    leaf, other = _leaf(1), _leaf(1)
    point = ResumePoint(3, leaf, swa_pages=(), ring=1)

    assert Lock(leaf, point, 3).holds_on(leaf) == 2
    assert Lock(other, point, 3).holds_on(leaf) == 1
    assert Lock(other, None, 3).holds_on(leaf) == 0
