"""What the tree looks like from outside: spans of pages that no branch parts, for people to see."""

from dataclasses import dataclass

import numpy as np

from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.core.binding import address, library
from mem_cache.tree.handles import PointKind


@dataclass(frozen=True, slots=True)
class PointFacts:
    """One resume point of a span.

    position  tokens before it are what its state was computed from
    kind      why it was left: an index into `PointKind`
    pins      requests that use it right now
    age       matches since its last use
    """

    position: int
    kind: int
    pins: int
    age: int


@dataclass(frozen=True, slots=True)
class Span:
    """A run of pages of one namespace without a branch in between.

    id         node of its first page; unique in the tree
    parent     id of the span before it, 0 at the top of a namespace
    namespace  name of the namespace
    start      position of its first token
    end        position after its last token
    pages      full page ids, in order
    points     its resume points by position; a span without one is a tombstone
    locks      locks held on its pages, pins of its points included
    age        matches since its last use, or since that of what follows it
    children   spans that begin where it ends
    """

    id: int
    parent: int
    namespace: str
    start: int
    end: int
    pages: tuple[int, ...]
    points: tuple[PointFacts, ...]
    locks: int
    age: int
    children: int


def list_spans(arrays: TreeArrays, roots: dict[str, int], limit: int) -> tuple[list[Span], int]:
    """Return at most `limit` spans and how many were left out.

    Begins with the ends that were used last, each after the spans that lead to it. Finding those
    takes a few passes over the arrays; all else costs what is returned.
    """
    names = {root: name for name, root in roots.items()}
    parent, children = arrays.page("parent"), arrays.page("children")
    pages = np.flatnonzero(parent)
    top = parent[pages] < 0
    begins = top | (children[np.where(top, 0, parent[pages])] > 1)
    total = int(begins.sum())
    ends = pages[children[pages] == 0]
    ends = ends[np.argsort(-arrays.stamp[ends], kind="stable")]
    path = np.zeros(len(parent), np.int32)
    spans: list[Span] = []
    known: dict[int, int] = {}
    for end in ends.tolist():
        if len(spans) >= limit:
            break
        above: list[np.ndarray] = []
        page, stamp = end, int(arrays.stamp[end])
        while page > 0 and page not in known:
            count = library().tree_span(arrays.pointer, page, address(path))
            above.append(path[:count][::-1].copy())
            known[page] = int(above[-1][0])
            page = int(parent[above[-1][0]])
        for ids in reversed(above[-(limit - len(spans)) :]):
            spans.append(_span(arrays, names, ids, known.get(int(parent[ids[0]]), 0), stamp))
    return spans, total - len(spans)


def _span(
    arrays: TreeArrays, names: dict[int, str], ids: np.ndarray, above: int, stamp: int
) -> Span:
    first, last = int(ids[0]), int(ids[-1])
    size, tick = arrays.tokens.shape[1], arrays.tree.tick
    number, length = arrays.page("number"), arrays.page("length")
    return Span(
        id=first,
        parent=above,
        namespace=names[int(arrays.page("root")[first])],
        start=int(number[first]) * size,
        end=int(number[last]) * size + int(length[last]),
        pages=tuple(arrays.unit[ids].tolist()),
        points=tuple(
            fact for page in ids[arrays.page("point")[ids] != 0] for fact in _points(arrays, page)
        ),
        locks=int(arrays.page("locks")[ids].sum()),
        age=max(0, tick - max(stamp, 0, int(arrays.stamp[ids].max()))),
        children=int(arrays.page("children")[last]),
    )


def _points(arrays: TreeArrays, page: int) -> list[PointFacts]:
    position, tick = arrays.point("position"), arrays.tree.tick
    facts: list[PointFacts] = []
    point = int(arrays.page("point")[page])
    while point:
        facts.append(
            PointFacts(
                position=int(position[point]),
                kind=min(int(arrays.point_kind[point]), PointKind.REQUEST_END),
                pins=int(arrays.point("pins")[point]),
                age=max(0, tick - max(0, int(arrays.point_stamp[point]))),
            )
        )
        point = int(arrays.point("below")[point])
    return facts[::-1]
