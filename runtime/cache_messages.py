"""Messages about the cache: ask what it looks like, and a view of it.

Part of the unions of `runtime.messages`.
"""

from typing import Literal

import msgspec


class GetCache(msgspec.Struct, frozen=True, tag=True):
    """Ask what the pools and the tree look like. Answered by `CacheView`.

    max_spans   the answer carries no more; also bounds what the answer costs the scheduler
    replica     whose; with data-parallel attention each has a tree and pools of its own
    """

    call_id: int
    max_spans: int
    replica: int = 0


class PoolView(msgspec.Struct, frozen=True):
    """One pool, in its own units: pages or rings.

    free        units that nobody refers to
    evictable   units that only the tree refers to and nobody uses
    """

    name: Literal["full", "swa", "rings"]
    capacity: int
    free: int
    evictable: int


class NamespaceView(msgspec.Struct, frozen=True):
    """A namespace that has a span or a running request in the view.

    digest   tells namespaces apart while the scheduler lives, and says nothing of their names
    tokens   that it holds, spans left out included
    """

    index: int
    digest: str
    tokens: int


class RequestView(msgspec.Struct, frozen=True):
    """A running request and its four lengths, in tokens.

    namespace   index into `CacheView.namespaces`
    replay_to   tokens before it that were not matched are computed again, and not stored; 0 when
                nothing is replayed
    limit       prompt and all the new tokens it may get
    """

    id: int
    namespace: int
    status: Literal["prefill", "decode"]
    row: int
    matched: int
    committed: int
    scheduled: int
    total: int
    replay_to: int
    limit: int


class PointView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A resume point of a span; see `mem_cache.tree.span.PointFacts`.

    There are thousands, and never a cycle: the collector need not follow them.

    kind   index into `CacheView.point_kinds`
    """

    position: int
    kind: int
    pins: int
    age: int


class SpanView(msgspec.Struct, frozen=True, gc=False):
    """A run of pages without a branch in between; see `mem_cache.tree.span.Span`.

    namespace   index into `CacheView.namespaces`
    num_pages   its pages; `pages` names the first few
    num_points  its resume points, 0 for a tombstone; `points` holds the deepest of them
    """

    id: int
    parent: int
    namespace: int
    start: int
    end: int
    num_pages: int
    pages: list[int]
    num_points: int
    points: list[PointView]
    locks: int
    age: int
    children: int


class CacheView(msgspec.Struct, frozen=True, tag=True):
    """Answer to `GetCache`: the cache between two steps. Holds no token id and no name.

    time_s          the scheduler's clock: for differences only
    replay_tokens   the longest replay; None where nothing is replayed
    point_kinds     why resume points are left, in words
    counters        as in `State`
    waiting         requests without a row
    requests        running requests; `requests_left_out` more are not named
    spans           each with all its ancestors; `spans_left_out` more, less recently used
    """

    call_id: int
    time_s: float
    page_size: int
    window: int
    replay_tokens: int | None
    point_kinds: list[str]
    pools: list[PoolView]
    counters: dict[str, float]
    namespaces: list[NamespaceView]
    waiting: int
    requests: list[RequestView]
    requests_left_out: int
    spans: list[SpanView]
    spans_left_out: int
