"""Verifies everything that must hold in a tree, its two lists and its three pools.

Nothing here relies on what it checks: the walk goes down by children only, positions are counted
along the way, and references are added up anew. A fault is told with the path to it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.children import TOKEN_BYTES
from mem_cache.errors import IntegrityError
from mem_cache.lru import Link, LruList
from mem_cache.node import Node, Point, Root
from mem_cache.spec import TreeSpec, div_ceil


@dataclass(frozen=True, slots=True)
class Tally:
    """What the owner of the tree counted: nodes, pages and points in it, locks and pins held."""

    nodes: int
    pages: int
    points: int
    locks: int
    pins: int


@dataclass(frozen=True, slots=True)
class Pool:
    """An allocator, and the references that others than the tree hold on its units."""

    allocator: PageAllocator
    held: Counter[int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A node and how it was reached; `above` is the parent's place."""

    node: Node
    above: "_Place | None"
    end: int

    def __str__(self) -> str:
        name = f"[{self.node.start}, {self.node.end})"
        if isinstance(self.node, Root):
            name = f"namespace {self.node.namespace!r}"
        return name if self.above is None else f"{self.above} > {name}"


def check_all(
    spec: TreeSpec,
    roots: dict[str, Root],
    *,
    full_lru: LruList[Node],
    swa_lru: LruList[Point],
    tally: Tally,
    full: Pool,
    swa: Pool,
    rings: Pool,
) -> None:
    """Verify spans, pages, children, points, locks, lists, counts and all references.

    Raises IntegrityError with the path to the first fault found. Changes nothing.
    """
    for namespace, root in roots.items():
        _check_root(namespace, root)
    places = [place for root in roots.values() for place in _places(root)]
    for place in places:
        _check_span(spec, place)
    for place in places:
        _check_children(spec, place)
        _check_points(spec, place)
        _check_locks(place)
    below = [place for place in places if place.above is not None]
    _check_unique_pages(below)
    _check_heads(spec, places)
    _check_full_list(below, full_lru)
    points = [(place, point) for place in below for point in place.node.points]
    _check_swa_list(points, swa_lru)
    _check_tally(places, below, points, tally)
    references = Counter(int(page) for place in below for page in place.node.pages)
    full.allocator.check(references + full.held)
    references = Counter(page for _, point in points for page in point.swa_pages)
    swa.allocator.check(references + swa.held)
    rings.allocator.check(Counter(point.ring for _, point in points) + rings.held)


def _places(root: Root) -> Iterator[_Place]:
    """Go down from a root, parents first; `end` is what the spans add up to."""
    stack = [_Place(root, None, 0)]
    while stack:
        place = stack.pop()
        yield place
        for child in place.node.children:
            stack.append(_Place(child, place, place.end + len(child.tokens)))


def _require(holds: bool, place: "_Place | str", what: str) -> None:
    if not holds:
        raise IntegrityError(f"{place}: {what}")


def _check_root(namespace: str, root: Root) -> None:
    place = f"namespace {namespace!r}"
    _require(root.namespace == namespace, place, f"its root is that of {root.namespace!r}")
    _require(not root.linked, place, "a root stands in a list")
    _require(root.parent is None, place, "a root has a parent")
    _require(not len(root.tokens) and not root.points, place, "a root has tokens or points")
    _require(len(root.children) > 0 or root.full_lock_ref > 0, place, "empty, yet kept")


def _check_span(spec: TreeSpec, place: _Place) -> None:
    node = place.node
    if place.above is None:
        return
    size = len(node.tokens)
    _require(size > 0, place, "an empty span")
    _require(node.page_size == spec.page_size, place, "another page size")
    _require(node.parent is place.above.node, place, "its parent link leads elsewhere")
    _require(node.start == place.above.end, place, f"starts elsewhere than at {place.above.end}")
    _require(node.start % spec.page_size == 0, place, "starts inside a page")
    _require(
        len(node.pages) == div_ceil(size, spec.page_size), place, f"has {len(node.pages)} pages"
    )
    _require(not size % spec.page_size or not len(node.children), place, "partial, with children")


def _check_children(spec: TreeSpec, place: _Place) -> None:
    children = place.node.children
    keys = list(children.sorted_keys())
    _require(keys == sorted(keys), place, "child keys out of order")
    _require(set(keys) == {key for key, _ in children.items()}, place, "child keys disagree")
    _require(len(keys) == len(children), place, "a child key stands twice")
    for key, child in children.items():
        first = child.tokens[: spec.page_size].tobytes()
        _require(key == first, place, f"child [{child.start}, {child.end}) has another key")
    # A key that is a prefix of any other is one of the next in order.
    for key, following in pairwise(keys):
        _require(not following.startswith(key), place, "a child key is a prefix of another")


def _check_points(spec: TreeSpec, place: _Place) -> None:
    node, last = place.node, place.node.start
    for point in node.points:
        what = f"resume point {point.position}"
        _require(point.alive, place, f"{what} is given up")
        _require(point.node is node, place, f"{what} says it hangs elsewhere")
        _require(last < point.position <= node.end, place, f"{what} out of order or of the span")
        _require(
            len(point.swa_pages) == len(spec.window_page_range(point.position)),
            place,
            f"{what} has {len(point.swa_pages)} SWA pages",
        )
        last = point.position


def _check_locks(place: _Place) -> None:
    node = place.node
    _require(node.full_lock_ref >= 0, place, f"full_lock_ref is {node.full_lock_ref}")
    for point in node.points:
        what = f"swa_lock_ref of resume point {point.position}"
        _require(point.swa_lock_ref >= 0, place, f"{what} is {point.swa_lock_ref}")
    pins = sum(point.swa_lock_ref for point in node.points)
    _require(node.full_lock_ref >= pins, place, f"full_lock_ref {node.full_lock_ref} < {pins}")


def _check_unique_pages(places: list[_Place]) -> None:
    if not places:
        return
    pages = np.concatenate([place.node.pages for place in places])
    values, counts = np.unique(pages, return_counts=True)
    twice = values[counts > 1]
    if len(twice):
        holder = [place for place in places if twice[0] in place.node.pages]
        raise IntegrityError(f"{holder[-1]}: page {twice[0]} stands in the tree twice")


def _check_heads(spec: TreeSpec, places: list[_Place]) -> None:
    """Points inside first pages: each known to the parent, none twice, nothing else known."""
    expected: dict[int, dict[bytes, Point]] = {id(place): {} for place in places}
    for place in places:
        node = place.node
        if place.above is None:
            continue
        known = expected[id(place.above)]
        for point in node.points:
            before = node.tokens[: point.position - node.start].tobytes()
            if len(before) < spec.page_size * TOKEN_BYTES:
                what = f"tokens before resume point {point.position} have another"
                _require(before not in known, place, what)
                known[before] = point
    for place in places:
        heads = dict(place.node.children.heads())
        _require(heads == expected[id(place)], place, "index of points in first pages is wrong")


def _check_full_list(places: list[_Place], full_lru: LruList[Node]) -> None:
    listed = _members("full_lru", full_lru)
    for place in places:
        node = place.node
        inside = listed.pop(id(node), None) is not None
        _require(node.linked == inside, place, "its links lead into another list")
        if node.full_lock_ref:
            _require(not inside, place, "locked, yet in full_lru")
        elif not len(node.children):
            _require(inside, place, "an unlocked leaf is missing from full_lru")
    if listed:
        raise IntegrityError(f"full_lru: {len(listed)} nodes are not in the tree")


def _check_swa_list(points: list[tuple[_Place, Point]], swa_lru: LruList[Point]) -> None:
    listed = _members("swa_lru", swa_lru)
    for place, point in points:
        inside = listed.pop(id(point), None) is not None
        what = f"resume point {point.position} is {'' if inside else 'not '}in swa_lru"
        _require(inside == (point.swa_lock_ref == 0), place, what)
    if listed:
        raise IntegrityError(f"swa_lru: {len(listed)} resume points are not in the tree")


def _members(name: str, items: LruList[Node] | LruList[Point]) -> dict[int, Link]:
    try:
        items.check()
    except IntegrityError as error:
        raise IntegrityError(f"{name}: {error}") from error
    return {id(item): item for item in items}


def _check_tally(
    places: list[_Place], below: list[_Place], points: list[tuple[_Place, Point]], tally: Tally
) -> None:
    pins = sum(point.swa_lock_ref for _, point in points)
    found = Tally(
        nodes=len(below),
        pages=sum(len(place.node.pages) for place in below),
        points=len(points),
        locks=sum(place.node.full_lock_ref for place in places) - pins,
        pins=pins,
    )
    if found != tally:
        raise IntegrityError(f"the tree counts {tally}, it has {found}")
