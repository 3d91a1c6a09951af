"""Views of a cache, made by hand."""

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from runtime.cache_messages import (
    CacheView,
    NamespaceView,
    PointView,
    PoolView,
    RequestView,
    SpanView,
)

PAGE = 256
EMPTY = CacheView(
    call_id=0,
    time_s=0.0,
    page_size=PAGE,
    window=128,
    replay_tokens=600,
    point_kinds=["prompt end", "request end", "branch"],
    pools=[PoolView(name, 10, 10, 0) for name in ("full", "swa", "rings")],
    counters={},
    namespaces=[],
    waiting=0,
    requests=[],
    requests_left_out=0,
    spans=[],
    spans_left_out=0,
)


def span(
    id: int,
    parent: int,
    start: int,
    end: int,
    *,
    namespace: int = 0,
    points: Sequence[PointView] = (),
    locks: int = 0,
    age: int = 0,
    children: int = 0,
) -> SpanView:
    """Return a span whose pages are numbered from its id on."""
    pages = -(-end // PAGE) - start // PAGE
    return SpanView(
        id=id,
        parent=parent,
        namespace=namespace,
        start=start,
        end=end,
        num_pages=pages,
        pages=list(range(id, id + min(4, pages))),
        num_points=len(points),
        points=list(points),
        locks=locks,
        age=age,
        children=children,
    )


def view_of(spans: Sequence[SpanView], **fields: Any) -> CacheView:
    """Return a view of these spans, with as many namespaces as they name."""
    count = max((item.namespace for item in spans), default=-1) + 1
    names = [
        NamespaceView(index, f"{index:08x}", sum(_tokens(item, index) for item in spans))
        for index in range(count)
    ]
    return replace(EMPTY, spans=list(spans), **{"namespaces": names, **fields})


def _tokens(item: SpanView, namespace: int) -> int:
    return item.end - item.start if item.namespace == namespace else 0


def small_view() -> CacheView:
    """Return a view with everything in it.

    namespace 0   1 [0, 512) with two points, one pinned; below it 3 [512, 700), a tombstone, and
                  4 [512, 1100) with one point
    namespace 1   9 [0, 300), long unused
    """
    spans = [
        span(1, 0, 0, 512, locks=2, children=2, points=[PointView(300, 0, 0, 5), _pinned(512)]),
        span(4, 1, 512, 1100, age=3, points=[PointView(1100, 1, 0, 3)]),
        span(3, 1, 512, 700, age=40),
        span(9, 0, 0, 300, namespace=1, age=900, points=[PointView(300, 0, 0, 900)]),
    ]
    pools = [
        PoolView("full", 2000, 1400, 500),
        PoolView("swa", 60, 20, 33),
        PoolView("rings", 12, 5, 6),
    ]
    requests = [
        RequestView(77, 0, "prefill", 0, 512, 700, 900, 1200, replay_to=600, limit=1300),
        RequestView(78, 1, "decode", 1, 256, 310, 310, 311, replay_to=0, limit=400),
    ]
    return view_of(spans, pools=pools, requests=requests, waiting=3, counters=counters())


def _pinned(position: int) -> PointView:
    return PointView(position, 2, 1, 0)


def counters(**changes: float) -> dict[str, float]:
    """Return counters of a server that has served a little; `changes` replace some of them."""
    known = {
        "requests": 7,
        "finished_requests": 5,
        "retracted_requests": 0,
        "aborted_requests": 0,
        "failed_requests": 0,
        "refused_requests": 0,
        "prompt_tokens": 4000,
        "cached_tokens": 1500,
        "replayed_tokens": 100,
        "computed_prompt_tokens": 2500,
        "generation_tokens": 90,
        "evicted_pages": 3,
        "evicted_points": 2,
    }
    return {name: float(value) for name, value in {**known, **changes}.items()}


def many_spans(count: int) -> list[SpanView]:
    """Return a tree of so many spans: chains of up to eight, each hung somewhere on the one before.

    Every third is a tombstone.
    """
    spans: list[SpanView] = []
    numbers = itertools.count(1)
    while len(spans) < count:
        above = spans[len(spans) * 2 // 3] if spans else None
        for _ in range(min(8, count - len(spans))):
            start = above.end if above else 0
            number = next(numbers)
            points = [PointView(start + PAGE, 0, 0, number)] if number % 3 else []
            above = span(number, above.id if above else 0, start, start + PAGE, points=points)
            spans.append(above)
    return spans
