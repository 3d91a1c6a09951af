"""Pools, running requests and the tree of spans, as one message for people to see.

It is made on the scheduler's thread between two steps, so that what it costs is bounded: by
`max_spans` for the tree (`MAX_POINTS` for its resume points), by the number of namespaces and of
rows for the rest. The tree is asked for no more than `max_spans` spans, and nothing here walks it.

Prompts are private: no token id is told, and of a namespace's name only a digest (`namespaces`).
"""

from collections.abc import Sequence
from typing import Protocol

from mem_cache.tree.handles import PointKind
from mem_cache.tree.span import Span
from runtime.cache_messages import (
    CacheView,
    GetCache,
    NamespaceView,
    PointView,
    PoolView,
    RequestView,
    SpanView,
)
from runtime.executor.pool_names import pool_views
from runtime.scheduler.namespaces import digest
from runtime.scheduler.request import Request, Status
from runtime.scheduler.residency import Residency
from runtime.scheduler.stats import Stats

MAX_PAGES_OF_A_SPAN = 4
MAX_POINTS = 20_000
MIN_POINTS_OF_A_SPAN = 2
MAX_REQUESTS = 512
POINT_KINDS = [kind.name.lower().replace("_", " ") for kind in PointKind]


class Tree(Protocol):
    """What a view needs of the prefix cache."""

    def spans(self, limit: int) -> tuple[list[Span], int]:
        """Return at most `limit` spans, with all their ancestors, and how many are left out."""
        ...

    def tokens_by_namespace(self) -> dict[str, int]:
        """Count the tokens that each namespace holds."""
        ...


def cache_view(
    message: GetCache,
    tree: Tree,
    *,
    residency: Residency,
    stats: Stats,
    requests: Sequence[Request],
    time_s: float,
) -> CacheView:
    """Return the answer to `message`.

    tree      the prefix cache of `residency`
    requests  those that hold a row
    time_s    the scheduler's clock
    """
    spans, left_out = tree.spans(message.max_spans)
    shown = requests[:MAX_REQUESTS]
    names = _Namespaces()
    span_views = _span_views(spans, names)
    request_views = [_request_view(request, names) for request in shown]
    return CacheView(
        call_id=message.call_id,
        time_s=time_s,
        page_size=residency.spec.page_size,
        window=residency.spec.window,
        replay_tokens=residency.replay_tokens,
        point_kinds=POINT_KINDS,
        pools=_pool_views(residency),
        counters=dict(stats.counters),
        namespaces=names.views(tree.tokens_by_namespace()),
        waiting=int(stats.gauges["waiting"]),
        requests=request_views,
        requests_left_out=len(requests) - len(shown),
        spans=span_views,
        spans_left_out=left_out,
    )


class _Namespaces:
    """Numbers namespaces as they are met."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Return the number of a namespace."""
        return self._index.setdefault(name, len(self._index))

    def views(self, tokens: dict[str, int]) -> list[NamespaceView]:
        """Return all that were met, by number."""
        return [
            NamespaceView(index, digest(name), tokens.get(name, 0))
            for name, index in self._index.items()
        ]


def _span_views(spans: list[Span], names: _Namespaces) -> list[SpanView]:
    """Return the spans as they travel; all their points together are at most MAX_POINTS."""
    points = max(MIN_POINTS_OF_A_SPAN, MAX_POINTS // max(1, len(spans)))
    return [
        SpanView(
            id=span.id,
            parent=span.parent,
            namespace=names.index(span.namespace),
            start=span.start,
            end=span.end,
            num_pages=len(span.pages),
            pages=list(span.pages[:MAX_PAGES_OF_A_SPAN]),
            num_points=len(span.points),
            points=[PointView(p.position, p.kind, p.pins, p.age) for p in span.points[-points:]],
            locks=span.locks,
            age=span.age,
            children=span.children,
        )
        for span in spans
    ]


def _request_view(request: Request, names: _Namespaces) -> RequestView:
    replays = request.holding.exact_from > request.matched
    return RequestView(
        id=request.id,
        namespace=names.index(request.namespace),
        status="prefill" if request.status is Status.PREFILL else "decode",
        row=request.row,
        matched=request.matched,
        committed=request.committed,
        scheduled=request.scheduled,
        total=request.total,
        replay_to=request.holding.exact_from if replays else 0,
        limit=len(request.tokens),
    )


def _pool_views(residency: Residency) -> list[PoolView]:
    return [
        PoolView(name, pool.capacity, pool.free, pool.evictable)
        for name, pool in pool_views(residency.usage)
    ]
