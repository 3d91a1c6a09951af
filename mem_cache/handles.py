"""What the tree answers, and what a request holds: match, lock, insertion."""

from dataclasses import dataclass

import numpy as np

from mem_cache.node import Node, Point


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree has of a sequence. Lock it before anything else changes the tree.

    full_tokens    F, the positions whose full pages are there; it may end inside a page
    pages          [ceil(F / page_size)] int32; of the last one only F % page_size positions are
                   valid if F ends inside it
    node           the node that holds position F - 1; the root of the namespace if F is 0
    point          the resume point that saves most, or None; it may hang on a sibling that has
                   the same tokens before it
    resume_tokens  S <= F, the tokens that `point` lets us skip: its position, or one less; else 0
    """

    full_tokens: int
    pages: np.ndarray
    node: Node
    point: Point | None
    resume_tokens: int


class Lock:
    """A request's hold on the tree: a node with everything above it, and maybe a resume point."""

    __slots__ = ("known_tokens", "node", "point", "released")

    def __init__(self, node: Node, point: Point | None, known_tokens: int) -> None:
        self.node = node
        self.point = point
        # Of the request's tokens, as many are known to be those on the path to the node. The
        # node may begin later, once it was split for a sequence that agrees with it further.
        self.known_tokens = known_tokens
        self.released = False

    def known_node(self, length: int) -> Node:
        """Return the deepest node at whose end the request's first tokens are known to lead.

        length  tokens of the sequence to follow from there; the node ends before them
        """
        node = self.node
        while node.parent is not None and not node.start < min(length, self.known_tokens + 1):
            node = node.parent
        return node.parent or node

    def holds_on(self, node: Node) -> int:
        """Count how much of `node.full_lock_ref` is this lock's."""
        pinned = self.point is not None and self.point.node is node
        return int(self.node is node) + int(pinned)


@dataclass(frozen=True, slots=True)
class Insertion:
    """Where a sequence of n tokens is now.

    pages       [n // page_size] int32, the tree's ids for all whole pages
    node        the node that holds position n - 1
    new_tokens  tokens that the tree did not have before
    """

    pages: np.ndarray
    node: Node
    new_tokens: int
