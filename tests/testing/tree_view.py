"""What stands in a tree, read off its arrays by following parents only."""

from typing import NamedTuple

import numpy as np

from mem_cache.tree.core.binding import SAVE_CLASSES
from mem_cache.tree.radix import ShadowRadixCache


class PageView(NamedTuple):
    """One page of a tree and what hangs on it.

    page    its node
    start   position of its first token
    points  (position, number) of its resume points, the deepest first
    """

    page: int
    namespace: str
    parent: int
    start: int
    tokens: list[int]
    points: list[tuple[int, int]]


def page_ids(cache: ShadowRadixCache) -> list[int]:
    """Return the nodes of all pages in the tree, those nearer to the top first."""
    arrays = cache.arrays
    pages = np.flatnonzero(arrays.page("parent"))
    return pages[np.argsort(arrays.page("number")[pages], kind="stable")].tolist()


def full_pages(cache: ShadowRadixCache) -> list[int]:
    """Return the full pages of all pages in the tree, those nearer to the top first."""
    return cache.arrays.unit[page_ids(cache)].tolist()


def view_pages(cache: ShadowRadixCache) -> list[PageView]:
    """Return all pages, those nearer to the top first."""
    arrays, size = cache.arrays, cache.spec.page_size
    names = {root: name for name, root in cache.roots.items()}
    views: list[PageView] = []
    for page in page_ids(cache):
        points: list[tuple[int, int]] = []
        point = int(arrays.page("point")[page])
        while point:
            points.append((int(arrays.point("position")[point]), point))
            point = int(arrays.point("below")[point])
        views.append(
            PageView(
                page,
                names[int(arrays.page("root")[page])],
                int(arrays.page("parent")[page]),
                int(arrays.page("number")[page]) * size,
                arrays.tokens[page, : arrays.page("length")[page]].tolist(),
                points,
            )
        )
    return views


def sequence(cache: ShadowRadixCache, page: int) -> list[int]:
    """Return all tokens from the top up to the end of a page."""
    arrays = cache.arrays
    parts: list[list[int]] = []
    while page > 0:
        parts.append(arrays.tokens[page, : arrays.page("length")[page]].tolist())
        page = int(arrays.page("parent")[page])
    return [token for part in reversed(parts) for token in part]


def end_of(cache: ShadowRadixCache, node: int) -> int:
    """Return the position after the last token of a node; 0 for the top of a namespace."""
    if node <= 0:
        return 0
    arrays = cache.arrays
    start = int(arrays.page("number")[node]) * cache.spec.page_size
    return start + int(arrays.page("length")[node])


def points_by_age(cache: ShadowRadixCache, kind: int) -> list[int]:
    """Return the positions of the unpinned points of a kind, the oldest first."""
    arrays = cache.arrays
    newer, _ = arrays.point_links()
    found: list[tuple[int, int]] = []
    for point in arrays.point_lists["oldest"].reshape(-1, SAVE_CLASSES)[kind].tolist():
        while point:
            found.append((int(arrays.point_stamp[point]), int(arrays.point("position")[point])))
            point = int(newer[point])
    return [position for _, position in sorted(found, key=lambda pair: pair[0])]


def check_spans(cache: ShadowRadixCache, limit: int) -> None:
    """Verify that all spans make up the tree, and that `limit` leaves out no more than it must."""
    views = {view.page: view for view in view_pages(cache)}
    spans, left_out = cache.spans(len(views) + 1)
    node_of = cache.arrays.node_of
    nodes = {span.id: node_of[list(span.pages)].tolist() for span in spans}
    by_id = {span.id: span for span in spans}
    assert left_out == 0
    assert sorted(node for span in nodes.values() for node in span) == sorted(views)
    assert list(by_id) == [nodes[span.id][0] for span in spans]
    for span in spans:
        inner = [views[node] for node in nodes[span.id]]
        assert [view.parent for view in inner[1:]] == nodes[span.id][:-1]
        assert {view.namespace for view in inner} == {span.namespace}
        assert span.start == inner[0].start
        assert span.end == inner[-1].start + len(inner[-1].tokens)
        found = sorted(position for view in inner for position, _ in view.points)
        assert [point.position for point in span.points] == found
        assert span.locks == cache.arrays.page("locks")[nodes[span.id]].sum()
        assert span.children == sum(other.parent == span.id for other in spans) != 1
        assert 0 <= span.age <= cache.arrays.tree.tick
        above = views[span.id].parent
        assert (nodes[span.parent][-1] if span.parent else min(above, 0)) == above

    some, left_out = cache.spans(limit)
    assert len(some) == min(limit, len(spans))
    assert left_out == len(spans) - len(some)
    shown = [span.id for span in some]
    assert all(span.parent in [0, *shown[:i]] for i, span in enumerate(some))


def check_superseded(cache: ShadowRadixCache) -> None:
    """Verify that a partial page stays beside a longer one that has all its tokens only locked."""
    siblings: dict[tuple[str, int], list[list[int]]] = {}
    views = view_pages(cache)
    for view in views:
        siblings.setdefault((view.namespace, view.parent), []).append(view.tokens)
    for view in views:
        others, count = siblings[view.namespace, view.parent], len(view.tokens)
        longer = [o for o in others if len(o) > count and o[:count] == view.tokens]
        assert not longer or cache.arrays.page("locks")[view.page]
