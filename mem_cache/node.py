"""Nodes of the tree: a span of tokens, its full pages, and the resume points inside it.

start                                    end
[ page | page | page | page | page | pa..)       children begin where a span ends, so a node
  ^ always at a page boundary         ^ partial: only a leaf        with children ends whole
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from mem_cache.children import Children, common_run
from mem_cache.errors import IntegrityError
from mem_cache.lru import Link
from mem_cache.resume_point import ResumePoint

Point: TypeAlias = ResumePoint["Node"]


def _position(point: Point) -> int:
    return point.position


def _own(part: np.ndarray) -> np.ndarray:
    """Copy `part` if it would keep more than twice its size alive."""
    base = part.base
    return part.copy() if not isinstance(base, np.ndarray) or base.size > 2 * part.size else part


class Node(Link):
    """A span [start, end) of one or more sequences that agree up to its end.

    tokens         [end - start] int32
    pages          [ceil((end - start) / page_size)] int32, one reference each is the tree's
    points         resume points with start < position <= end, by ascending position
    full_lock_ref  locks held on this node, and pins of its points: a locked node and all its
                   ancestors stay. Locks are counted where they are held, not along the path.
    Neighbours in `full_lru` while it is unlocked, unless it waits for its last child to go.
    """

    __slots__ = (
        "children",
        "full_lock_ref",
        "page_size",
        "pages",
        "parent",
        "points",
        "start",
        "tokens",
    )

    def __init__(self, page_size: int, start: int, tokens: np.ndarray, pages: np.ndarray) -> None:
        super().__init__()
        self.page_size = page_size
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.parent: Node | None = None
        self.children: Children[Node, Point] = Children()
        self.points: list[Point] = []
        self.full_lock_ref = 0

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def key(self) -> bytes:
        """What the parent knows this node by: its first page of tokens."""
        return self.tokens[: self.page_size].tobytes()

    @property
    def is_root(self) -> bool:
        """Whether this is the empty node at the top of a namespace."""
        return False

    @property
    def in_tree(self) -> bool:
        """Whether the node still has a place in the tree."""
        return self.parent is not None

    @property
    def tombstone(self) -> bool:
        """Whether the node has full pages only."""
        return not self.points

    @property
    def swa_lock_ref(self) -> int:
        """Pins of the node's resume points; never more than `full_lock_ref`."""
        return sum(point.swa_lock_ref for point in self.points)

    def depth_first(self) -> Iterator["Node"]:
        """Go through this node and everything below; a parent comes before its children."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)

    def adopt(self, child: "Node") -> None:
        """Hang a new child below; its first page must not be there yet."""
        child.parent = self
        self.children.add(child.key, child)

    def extend(self, tokens: np.ndarray, pages: np.ndarray) -> int:
        """Append tokens to this leaf; return the page id that was replaced, or 0.

        tokens  int32, the ones from `end` on
        pages   int32, from the page that holds `end` on: a partial page is replaced by it
        """
        partial = len(self.tokens) % self.page_size
        whole = len(self.tokens) // self.page_size
        replaced = int(self.pages[-1]) if partial else 0
        old_key = self.key if partial and not whole else None
        self.tokens = np.concatenate((self.tokens, tokens))
        self.pages = np.concatenate((self.pages[:whole], pages))
        if old_key is not None and self.parent is not None:
            self.parent.children.remove(old_key)
            self.parent.children.add(self.key, self)
        return replaced

    def split(self, position: int) -> "Node":
        """Give [start, position) to a new parent and keep the rest; return the new node.

        position  a page boundary inside the span
        Points go with their positions, and their pins with them; other locks stay below.
        """
        parent, cut = self.parent, position - self.start
        if parent is None or cut % self.page_size or not 0 < cut < len(self.tokens):
            raise IntegrityError(f"[{self.start}, {self.end}) cannot be split at {position}")
        whole = cut // self.page_size
        upper = Node(
            self.page_size, self.start, self.tokens[:cut].copy(), self.pages[:whole].copy()
        )
        upper.parent = parent
        parent.children.replace(self.key, upper)
        at = bisect_right(self.points, position, key=_position)
        upper.points, self.points = self.points[:at], self.points[at:]
        for point in upper.points:
            point.node = upper
        upper.full_lock_ref = upper.swa_lock_ref
        self.full_lock_ref -= upper.full_lock_ref
        self.start = position
        self.tokens, self.pages = self.tokens[cut:].copy(), self.pages[whole:].copy()
        upper.adopt(self)
        for point in self.points:
            self._announce(point)
        return upper

    def trim(self, keep_pages: int) -> tuple[np.ndarray, list[Point]]:
        """Cut this leaf to its first pages; return the pages and the points that go.

        With nothing kept the node leaves the tree. A point inside its first page then moves to
        a sibling that has the same tokens before it, if there is one.
        """
        dropped = self.pages[keep_pages:].copy()
        if keep_pages:
            at = bisect_right(self.points, self.start + keep_pages * self.page_size, key=_position)
            lost, self.points = self.points[at:], self.points[:at]
            self.tokens = _own(self.tokens[: keep_pages * self.page_size])
            self.pages = _own(self.pages[:keep_pages])
        else:
            lost = self._leave()
        return dropped, lost

    def add_point(self, point: Point) -> None:
        """Hang a resume point here; its tokens must not have one yet."""
        self.points.insert(bisect_left(self.points, point.position, key=_position), point)
        point.node = self
        self._announce(point)

    def remove_point(self, point: Point) -> None:
        """Take a resume point off this node."""
        self.points.remove(point)
        if self.parent is not None and self._in_head(point.position):
            self.parent.children.remove_head(self._before(point.position))

    def point_at(self, position: int) -> Point | None:
        """Return the resume point at `position`, here or on a sibling with the same tokens."""
        at = bisect_left(self.points, position, key=_position)
        if at < len(self.points) and self.points[at].position == position:
            return self.points[at]
        if self.parent is not None and self.start < position <= self.end:
            return self.parent.children.head(self._before(position))
        return None

    def deepest_point(self, limit: int) -> Point | None:
        """Return the last resume point at or before `limit`, here or on such a sibling.

        limit  the tokens before it must be this node's
        """
        at = bisect_right(self.points, limit, key=_position)
        own = self.points[at - 1] if at else None
        if self.parent is None or (own is not None and not self._in_head(own.position)):
            return own
        before = self._before(min(limit, self.start + self.page_size - 1))
        return self.parent.children.deepest_head(before)

    def _in_head(self, position: int) -> bool:
        """Whether `position` is inside the first page, where siblings may share it."""
        return position < self.start + self.page_size

    def _before(self, position: int) -> bytes:
        return self.tokens[: position - self.start].tobytes()

    def _announce(self, point: Point) -> None:
        if self.parent is not None and self._in_head(point.position):
            self.parent.children.add_head(self._before(point.position), point)

    def _leave(self) -> list[Point]:
        parent = self.parent
        if parent is None or len(self.children):
            raise IntegrityError(f"[{self.start}, {self.end}) is no leaf and cannot be removed")
        parent.children.remove(self.key)
        sibling, run = parent.children.nearest(self.key) if self.points else (None, 0)
        lost: list[Point] = []
        for point in self.points:
            if not self._in_head(point.position):
                lost.append(point)
            elif sibling is not None and point.position - self.start <= run:
                at = bisect_left(sibling.points, point.position, key=_position)
                sibling.points.insert(at, point)
                point.node = sibling
            else:
                parent.children.remove_head(self._before(point.position))
                lost.append(point)
        self.points = []
        self.parent = None
        return lost


class Root(Node):
    """The empty node above all sequences of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, page_size: int, namespace: str) -> None:
        super().__init__(page_size, 0, np.empty(0, np.int32), np.empty(0, np.int32))
        self.namespace = namespace

    @property
    def is_root(self) -> bool:
        """Whether this is the empty node at the top of a namespace: it is."""
        return True

    @property
    def in_tree(self) -> bool:
        """Whether the node still has a place: the top always has."""
        return True


def walk(start: Node, tokens: np.ndarray) -> tuple[list[Node], int]:
    """Follow `tokens` down from `start`; return the nodes met and the length of the match.

    tokens  [n] int32, the whole sequence; those before `start.end` are known to agree
    The nodes begin with `start`; the last one may agree only in part, with one token at least.
    """
    path, position, page_size = [start], start.end, start.page_size
    while position < len(tokens):
        first = tokens[position : position + page_size]
        child, run = path[-1].children.nearest(first.tobytes())
        if child is None:
            break
        if run == page_size:
            run = common_run(child.tokens, tokens[position:])
        path.append(child)
        position += run
        if run < len(child.tokens):
            break
    return path, position


def deepest_point(path: list[Node], full_tokens: int) -> Point | None:
    """Return the point that saves most of a match; of two, the one right at its end.

    path         from `walk`
    full_tokens  F, the length of the match; the last node of the path may begin there
    """
    if full_tokens == 0:
        return None
    past: Point | None = None
    for node in reversed(path):
        # Whatever token comes at F, the state behind it holds the one before it as well.
        ahead = node.point_at(full_tokens + 1) if past is None else None
        past = past if ahead is None or ahead.exact else ahead
        point = node.deepest_point(full_tokens)
        if point is not None:
            return past if past is not None and point.position < full_tokens else point
    return past
