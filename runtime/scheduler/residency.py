"""Requests in the cache: match and lock, reserve, publish, slide, snapshot, release.

The only module in which a request meets the tree and the allocators. It never runs anything on
the device: copies and saves are collected here and travel with the next step plan.

    page_table[row]   [ the tree's, locked )[ the row's own, one reference each )
                      0              shared_pages                          num_pages
"""

from collections import Counter

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.handles import Lock, Match, Point, PointKind
from mem_cache.tree.policy import EvictionPolicy
from mem_cache.tree.radix import ShadowRadixCache
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.kv_events import EventSink, KvEvents
from runtime.scheduler.pending_points import Claims, Copies, PendingPoints, Save
from runtime.scheduler.request import Holding, Request
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.waypoints import Waypoints


class Residency:
    """Owns the allocators, the request table and the tree of one scheduler.

    replay_tokens  how far before F to start so that window and ring at F are exact; None never
                   replays
    reuse          False keeps the tree empty: every request is computed cold and freed whole
    policy         where resume points are left
    eviction       who goes first; plain LRU unless given
    namespace_tokens  that one namespace may have in the tree, if it is not locked; None: no limit
    event_sink     told of whole pages that enter and leave the tree, if given
    """

    def __init__(
        self,
        spec: TreeSpec,
        *,
        full: PageAllocator,
        swa: PageAllocator,
        rings: PageAllocator,
        table: RequestTable,
        replay_tokens: int | None = None,
        reuse: bool = True,
        policy: ResumePolicy | None = None,
        eviction: EvictionPolicy | None = None,
        namespace_tokens: int | None = None,
        event_sink: EventSink | None = None,
    ) -> None:
        self.spec = spec
        self.full, self.swa, self.rings, self.table = full, swa, rings, table
        self.cache = ShadowRadixCache(
            spec,
            full=full,
            swa=swa,
            rings=rings,
            replay_tokens=replay_tokens,
            policy=eviction,
            log_removed=event_sink is not None,
        )
        self._events = None if event_sink is None else KvEvents(self.cache, event_sink)
        self.reuse = reuse
        self.replay_tokens = replay_tokens
        self.policy = policy or ResumePolicy()
        self._namespace_tokens = namespace_tokens
        self.evictions = Evictions(self.cache)
        self.points = PendingPoints(spec, self.cache, self.evictions)
        self.waypoints = Waypoints(
            spec,
            self.points,
            table=table,
            every_tokens=self.policy.waypoint_tokens if reuse else 0,
        )
        self._running: dict[int, Request] = {}
        self._copies = Copies()
        self._pins: list[Lock] = []

    # --- admission

    @property
    def rows_used(self) -> int:
        """Requests that hold a row."""
        return len(self._running)

    def has_row(self, *, beside: int = 0) -> bool:
        """Whether one more row, and `beside` after it, can run with all that they may need."""
        claims = self._claims(extra_rows=1 + beside)
        return self.table.free > beside and self.points.leaves_room(claims)

    def _claims(self, *, extra_rows: int = 0) -> Claims:
        """Return what running rows, and `extra_rows` more, may need at most.

        A row that starts from a resume point needs that one's window and ring beside its own until
        they were copied.
        """
        copied = len(self._pins) + extra_rows
        rows = self.rows_used + extra_rows
        return Claims((rows + copied) * self.spec.window_pages, rows + len(self._pins))

    def plan_saves(self, request: Request, start: int, end: int) -> list[Save]:
        """Return the snapshots for resume points in (start, end] of a chunk."""
        saves = self.points.plan_saves(request, start, end, claims=self._claims())
        return saves + self.waypoints.leave(request, start, end)

    def match(self, request: Request) -> Match:
        """Return what the tree has of a waiting request, and where it would start.

        Looking counts for nothing: only who is admitted is a use of what it matched.
        """
        match = self._match(request)
        lost_tokens = match.full_tokens - match.start
        if lost_tokens >= self.policy.branch_min_tokens and self.waypoints.enter(match):
            return self._match(request)
        return match

    def _match(self, request: Request) -> Match:
        tokens = request.tokens[: request.total]
        limit = request.match_limit if self.reuse else 0
        return self.cache.peek(tokens, limit=limit, namespace=request.namespace)

    def try_admit(self, request: Request, match: Match, *, reserve_pages: int = 0) -> bool:
        """Give a waiting request a row, its window and ring, and pages up to its `total`.

        Takes nothing and returns False when pages or rings cannot be had; `reserve_pages` must
        stay free besides. A lone request whose own match is in the way starts cold instead.
        """
        lock = self._lock_with_room(request, match, reserve_pages)
        if lock is None and self.rows_used == 0 and match.full_tokens:
            match = self.cache.peek(request.tokens[:1], limit=0, namespace=request.namespace)
            lock = self._lock_with_room(request, match, reserve_pages)
        if lock is None:
            return False
        self._claim(request, match, lock)
        return True

    def _lock_with_room(self, request: Request, match: Match, reserve_pages: int) -> Lock | None:
        """Lock the match and free the pages the rest of the request needs, or do neither."""
        if match.point is not None and not self._has_ring_to_copy():
            return None
        page = self.spec.page_size
        wanted = div_ceil(request.total, page) - match.full_tokens // page + reserve_pages
        lock = self.cache.lock(match)
        there = self.full.free + self.cache.evictable_pages
        if there >= wanted and self.evictions.make_room(wanted):
            return lock
        self.cache.unlock(lock)
        return None

    def _has_ring_to_copy(self) -> bool:
        """Whether a row can have a ring of its own while the point it copies from keeps one."""
        claims = self._claims(extra_rows=2)
        return claims.rings + self.points.rings_held <= self.rings.capacity

    def _claim(self, request: Request, match: Match, lock: Lock) -> None:
        """Take row, ring, window and pages.

        All whole pages of the match are shared, also those past the start: their records are
        there, so the tokens in between are computed for window and ring, and not written. A
        replay must not write its first, inexact records at all, so that it copies the partial
        page, too.
        """
        page, start, full = self.spec.page_size, match.start, match.full_tokens
        self.cache.use(match)
        shared = full // page
        replays = match.point is None and start > 0
        wanted = div_ceil(request.total, page) - shared
        row = self.table.claim()
        own = self.full.alloc(wanted)
        self._running[request.id] = request
        self.table.write_pages(row, 0, match.pages[:shared])
        self.table.write_pages(row, shared, own)
        ring = self._alloc_ring()
        self.table.write_ring(row, ring)
        self.table.length[row] = start
        if (full if replays else start) > shared * page:
            self._copies.pages.append((int(match.pages[shared]), int(own[0])))
        if match.point is not None:
            self._copies.rings.append((match.point.ring, ring))
            self._pins.append(lock)
            self._copy_window(row, match.point)
        write_from = full if replays else shared * page
        request.start(row, start)
        request.holding = Holding(
            lock,
            shared_pages=shared,
            num_pages=shared + wanted,
            published=max(start, write_from),
            full_matched=full,
            point_evicted=match.point_evicted,
            window_from=start if replays else 0,
            write_from=write_from,
            exact_from=full if replays else start,
            save_positions=self.policy.positions(
                match, target=request.target, boundaries=request.boundaries, page_size=page
            )
            if self.reuse
            else {},
        )
        if match.point is not None and start < min(match.point.position, request.match_limit):
            self.points.keep_branch(request, match.point, self._copies, claims=self._claims())

    def _copy_window(self, row: int, point: Point) -> None:
        """Give a row a window of its own with what the point's has: it will be written on."""
        mine = self._alloc_swa(len(point.swa_pages))
        self._copies.swa += zip(point.swa_pages, mine.tolist(), strict=True)
        self.table.write_window(row, 0, mine)

    def take_copies(self) -> Copies:
        """Return the copies collected since the last call; they must run before the step."""
        copies, self._copies = self._copies, Copies()
        return copies

    def copies_launched(self) -> None:
        """Let go of the resume points that the step just launched copies from.

        The page that it copies from needs no reference: the row's lock keeps it until the row
        publishes, which is later.
        """
        for lock in self._pins:
            self.cache.unlock_point(lock)
        self._pins.clear()

    # --- growth

    def try_grow(self, request: Request, position: int) -> bool:
        """Make the page of `position` the row's, if it is not yet; False if there is none."""
        if position // self.spec.page_size < request.holding.num_pages:
            return True
        if not self.evictions.make_room(1):
            return False
        self.table.write_pages(request.row, request.holding.num_pages, self.full.alloc(1))
        request.holding.num_pages += 1
        return True

    def open_window(self, request: Request, end: int) -> None:
        """Give a row the SWA pages that a window at `end` has; it keeps them to its own end."""
        wanted = self.spec.window_pages_at(end)
        have = int(np.count_nonzero(self.table.window[request.row]))
        if have < wanted:
            self.table.write_window(request.row, have, self._alloc_swa(wanted - have))

    # --- publication

    def publish(self, request: Request, *, partial: bool, ended: bool = False) -> None:
        """Insert the committed whole pages into the tree, and the partial one if asked.

        The row's table is rewritten to the tree's pages, the lock moves to the deepest node,
        and pending resume points whose positions are now published are attached.
        """
        page = self.spec.page_size
        tokens = request.committed if partial else request.committed // page * page
        if not self.reuse or request.holding.lock is None:
            return
        if tokens > request.holding.published or (
            ended and tokens == request.holding.published > 0
        ):
            self._insert(request, tokens, ended=ended)
        self.points.place(request)

    def _insert(self, request: Request, tokens: int, *, ended: bool) -> None:
        page = self.spec.page_size
        row, first, whole = request.row, request.holding.shared_pages, tokens // page
        table = self.table.page_table[row]
        insertion = self.cache.insert(
            request.tokens[:tokens],
            table[: div_ceil(tokens, page)],
            namespace=request.namespace,
            lock=request.holding.lock,
            ended=ended,
            output_from=request.prompt_tokens,
        )
        if self._events is not None:
            self._events.inserted(insertion, request.namespace)
        if whole > first:
            own = table[first:whole].copy()
            self.table.write_pages(row, first, insertion.pages[first:whole])
            self.full.decref(own)
            request.holding.shared_pages = whole
        request.holding.published = tokens
        self.keep_quota(request.namespace)

    def keep_quota(self, namespace: str) -> None:
        """Evict what a namespace has beyond its quota, but for what is locked."""
        if self._namespace_tokens is not None:
            self.evictions.shrink(namespace, keep_tokens=self._namespace_tokens)

    def flush_events(self) -> None:
        """Hand on which pages came and went since the last call, if anybody wants to know."""
        if self._events is not None:
            self._events.flush()

    def reset(self) -> None:
        """Empty the tree. Raises IntegrityError while requests run."""
        self.cache.reset()
        if self._events is not None:
            self._events.cleared()
            self._events.flush()

    # --- the end

    def release(self, request: Request, *, publish: bool = True, ended: bool = True) -> None:
        """Let go of everything a running request holds; its state is published first.

        publish=False is for a request whose state cannot be trusted, ended=False for one that will
        come back itself: a next turn is nothing to learn from then.
        """
        row, holding = request.row, request.holding
        assert holding.lock is not None
        if publish:
            if request.scheduled == request.total:
                # A decode step in flight feeds the last token; who reads that is launched later.
                request.committed = request.total
            self.publish(request, partial=True, ended=ended)
            self.waypoints.hand_over(request)
            self._leave_end_point(request)
        self.points.drop(request)
        self.waypoints.give_up(request)
        own = slice(holding.shared_pages, holding.num_pages)
        self.full.decref(self.table.page_table[row, own])
        window = self.table.window[row]
        self.swa.decref(window[window != 0])
        self.rings.decref([int(self.table.ring[row])])
        self.cache.unlock(holding.lock)
        self.table.release(row)
        del self._running[request.id]
        request.leave_row()

    def _leave_end_point(self, request: Request) -> None:
        """Hand the row's window and ring to a resume point behind all that was fed."""
        position = request.committed
        assert request.scheduled == position, f"request {request.id} leaves with a chunk in flight"
        if (
            not (self.reuse and self.policy.request_end and position)
            or request.holding.lock is None
        ):
            return
        pages = self.table.window[request.row, : self.spec.window_pages_at(position)]
        if position <= request.matched or position < request.holding.exact_from:
            return
        self.cache.add_point(
            request.holding.lock.node,
            position,
            swa_pages=pages.tolist(),
            ring=int(self.table.ring[request.row]),
            kind=PointKind.REQUEST_END,
        )

    # --- allocation and checks

    def count_references(
        self, request: Request, full: Counter[int], swa: Counter[int], rings: Counter[int]
    ) -> None:
        """Add the references that a running request holds, per unit of each pool."""
        row = request.row
        full.update(
            self.table.page_table[
                row, request.holding.shared_pages : request.holding.num_pages
            ].tolist()
        )
        window = self.table.window[row]
        swa.update(window[window != 0].tolist())
        rings[int(self.table.ring[row])] += 1
        for point in (*request.holding.pending_points, *request.holding.waypoints):
            swa.update(point.swa_pages)
            rings[point.ring] += 1

    def _alloc_swa(self, count: int) -> np.ndarray:
        self.evictions.drop_points(swa_pages=count)
        return self.swa.alloc(count)

    def _alloc_ring(self) -> int:
        self.evictions.drop_points(rings=1)
        return self.rings.take()
