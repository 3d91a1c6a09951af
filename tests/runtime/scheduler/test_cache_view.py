"""What people may see of the cache is right, private, and bounded."""

import msgspec
import pytest

from mem_cache.spec import PoolSizes
from mem_cache.tree.handles import PointKind
from mem_cache.tree.radix import ShadowRadixCache
from mem_cache.tree.span import PointFacts, Span
from runtime.cache_messages import CacheView, GetCache, PoolView
from runtime.scheduler.cache_view import MAX_PAGES_OF_A_SPAN, MAX_POINTS, MAX_REQUESTS, cache_view
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=50, swa_pages=60, states=20)
PROMPT = list(range(20))


class TreeStandIn:
    """Answers with prepared spans, cut to what is asked for."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans

    def spans(self, limit: int) -> tuple[list[Span], int]:
        """Return the first `limit` spans and how many are left out."""
        return self._spans[:limit], max(0, len(self._spans) - limit)

    def tokens_by_namespace(self) -> dict[str, int]:
        """Count the tokens of all spans."""
        names = {span.namespace for span in self._spans}
        return {n: sum(s.end - s.start for s in self._spans if s.namespace == n) for n in names}


def span_of(number: int, *, namespace: str = "", pages: int = 1, points: int = 0) -> Span:
    facts = tuple(PointFacts(8 * number + k + 1, 1, 0, k) for k in range(points))
    return Span(
        id=number,
        parent=0,
        namespace=namespace,
        start=0,
        end=8 * pages,
        pages=tuple(range(number, number + pages)),
        points=facts,
        locks=number,
        age=2 * number,
        children=3,
    )


def view_of(rig: Rig, tree: TreeStandIn, *, max_spans: int = 1000) -> CacheView:
    """Return the view of a rig's scheduler, with spans from elsewhere."""
    replica = rig.replica
    return cache_view(
        GetCache(5, max_spans),
        tree,
        residency=rig.residency,
        stats=replica.stats,
        requests=replica.sets.running,
        time_s=1.5,
    )


def pools_of(view: CacheView) -> dict[str, PoolView]:
    return {pool.name: pool for pool in view.pools}


def test_an_idle_scheduler_shows_its_sizes_and_counters() -> None:
    rig = Rig(AMPLE, replay=24)
    rig.send(PROMPT, 2)
    rig.run()

    view = view_of(rig, TreeStandIn([]))

    assert (view.call_id, view.time_s, view.page_size, view.window) == (5, 1.5, 8, 8)
    assert view.replay_tokens == 24
    assert view.counters == rig.replica.stats.counters
    assert view.counters["prompt_tokens"] == 20
    assert (view.requests, view.waiting, view.namespaces, view.spans) == ([], 0, [], [])
    full, swa, rings = view.pools
    assert full == PoolView("full", 50, rig.residency.full.free, 50 - rig.residency.full.free)
    assert swa == PoolView("swa", 60, rig.residency.swa.free, 60 - rig.residency.swa.free)
    assert rings.evictable == rig.residency.cache.points > 0


def test_spans_are_told_with_a_number_for_their_namespace() -> None:
    spans = [span_of(7, namespace="b", points=2), span_of(3), span_of(4, namespace="b", pages=2)]

    view = view_of(Rig(AMPLE), TreeStandIn(spans))

    assert [(s.id, s.namespace, s.end, s.locks, s.age, s.children) for s in view.spans] == [
        (7, 0, 8, 7, 14, 3),
        (3, 1, 8, 3, 6, 3),
        (4, 0, 16, 4, 8, 3),
    ]
    assert [(n.index, n.tokens) for n in view.namespaces] == [(0, 24), (1, 8)]
    assert [(p.position, p.kind, p.pins, p.age) for p in view.spans[0].points] == [
        (57, 1, 0, 0),
        (58, 1, 0, 1),
    ]
    assert view.point_kinds[PointKind.REQUEST_END] == "request end"


def test_no_more_spans_are_told_than_asked_for() -> None:
    tree = TreeStandIn([span_of(number) for number in range(1, 31)])

    view = view_of(Rig(AMPLE), tree, max_spans=12)

    assert (len(view.spans), view.spans_left_out) == (12, 18)


def test_names_and_tokens_stay_private() -> None:
    secret = "a-salt-that-nobody-may-see"
    rig = Rig(AMPLE)
    prompt = [41, 42, 43, 44] * 6
    request = rig.send(prompt, 5, namespace=secret)
    rig.turn_until(lambda: bool(rig.tokens(request)))

    view = view_of(rig, TreeStandIn([span_of(1, namespace=secret), span_of(2)]))

    assert secret not in str(msgspec.to_builtins(view))
    first, second = view.namespaces
    assert first.digest != second.digest
    assert view.requests[0].namespace == first.index
    assert view_of(rig, TreeStandIn([span_of(2)])).namespaces[0].digest == second.digest
    assert not {"tokens", "input_ids", "output"} & set(msgspec.to_builtins(view.requests[0]))


def test_running_requests_show_their_lengths_and_hold_their_units() -> None:
    rig = Rig(AMPLE, chunk=16, rows=2)
    first = rig.send(PROMPT, 9)
    second = rig.send([7] * 40, 3)
    rig.send([8] * 10, 3)
    rig.turn_until(lambda: bool(rig.tokens(first)) and 0 < rig.request(second).committed < 40)

    view = view_of(rig, TreeStandIn([]))

    shown = {request.id: request for request in view.requests}
    prefill, decode = shown[second], shown[first]
    assert (prefill.status, decode.status) == ("prefill", "decode")
    assert (prefill.matched, prefill.total, prefill.limit) == (0, 40, 43)
    assert prefill.committed == rig.request(second).committed
    assert decode.total == 20 + len(rig.tokens(first))
    assert (decode.limit, decode.replay_to) == (29, 0)
    assert {request.row for request in view.requests} == {0, 1}
    assert view.waiting == 1
    held = rig.residency.references([rig.request(running) for running in shown])
    for pool, units in (("swa", held[1]), ("rings", held[2])):
        told = pools_of(view)[pool]
        assert told.capacity - told.free - told.evictable == len(units) > 0


def test_evicting_every_point_frees_what_was_called_evictable() -> None:
    rig = Rig(AMPLE, chunk=16)
    rig.send(PROMPT, 2)
    rig.run()
    running = rig.send([*PROMPT, 5, 6, 7, 8], 9)
    rig.turn_until(lambda: bool(rig.tokens(running)))
    before = pools_of(view_of(rig, TreeStandIn([])))
    assert before["swa"].evictable > 0

    rig.residency.cache.evict_swa(states=AMPLE.states)
    rig.replica.stats.update(running=1, waiting=0)

    after = pools_of(view_of(rig, TreeStandIn([])))
    for name in ("swa", "rings"):
        assert after[name].evictable == 0
        assert after[name].free == before[name].free + before[name].evictable


def test_a_replay_says_how_far_it_goes() -> None:
    rig = Rig(AMPLE, chunk=8, replay=24)
    history = [k % 13 for k in range(64)]
    rig.send([*history, 1], 2)
    rig.run()
    rig.residency.cache.evict_swa(states=AMPLE.states)
    rig.send([*history, 2, 3], 2)
    rig.scheduler.turn()

    (request,) = view_of(rig, TreeStandIn([])).requests

    assert (request.matched, request.replay_to) == (40, 64)
    assert rig.replica.stats.counters["replayed_tokens"] == 24
    assert request.committed < request.replay_to


def test_a_long_span_names_its_first_pages_and_its_deepest_points() -> None:
    tree = TreeStandIn([span_of(1, pages=900, points=MAX_POINTS + 50)])

    (span,) = view_of(Rig(AMPLE), tree).spans

    assert (span.num_pages, span.pages) == (900, [1, 2, 3, 4])
    assert len(span.pages) == MAX_PAGES_OF_A_SPAN
    assert (span.num_points, len(span.points)) == (MAX_POINTS + 50, MAX_POINTS)
    assert span.points[-1].position == 8 + MAX_POINTS + 50


def test_many_spans_share_the_room_for_points() -> None:
    count = 10_000
    tree = TreeStandIn([span_of(number, points=9) for number in range(1, count + 1)])

    view = view_of(Rig(AMPLE), tree, max_spans=count)

    assert sum(len(span.points) for span in view.spans) == MAX_POINTS
    assert {span.num_points for span in view.spans} == {9}


def test_many_running_requests_are_counted_but_not_all_named() -> None:
    rig = Rig(AMPLE)
    sent = rig.send(PROMPT, 9)
    rig.turn_until(lambda: bool(rig.tokens(sent)))
    many = [rig.request(sent)] * (MAX_REQUESTS + 3)

    view = cache_view(
        GetCache(1, 10),
        TreeStandIn([]),
        residency=rig.residency,
        stats=rig.replica.stats,
        requests=many,
        time_s=0.0,
    )

    assert (len(view.requests), view.requests_left_out) == (MAX_REQUESTS, 3)


def test_the_loop_answers_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TreeStandIn([span_of(1), span_of(2)])
    monkeypatch.setattr(
        ShadowRadixCache, "spans", lambda cache, limit: tree.spans(limit), raising=False
    )
    rig = Rig(AMPLE)
    sent = rig.send(PROMPT, 9)
    rig.turn_until(lambda: bool(rig.tokens(sent)))
    rig.socket.inbox.append(GetCache(31, 1))
    rig.scheduler.turn()

    (view,) = [m for m in rig.socket.outbox if isinstance(m, CacheView)]
    assert (view.call_id, len(view.spans), view.spans_left_out) == (31, 1, 1)
    assert [request.id for request in view.requests] == [sent]
    rig.run()
    assert len(rig.tokens(sent)) == 9
