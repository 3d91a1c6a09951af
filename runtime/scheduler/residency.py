"""Requests in the cache: match and lock, reserve, publish, slide, snapshot, release.

The only module in which a request meets the tree and the allocators, but for a prefix that comes
from another replica (`received_prefix`). It never runs anything on
the device: copies and saves are collected here and travel with the next step plan.

    page_table[row]   [ the tree's, locked )[ the row's own, one reference each )
                      0              shared_pages                          num_pages
"""

from collections import Counter
from collections.abc import Iterable

from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.handles import Insertion, Lock, Match, PointKind
from mem_cache.tree.integrity import Held
from mem_cache.tree.policy import EvictionPolicy
from mem_cache.tree.radix import ShadowRadixCache
from mem_cache.units import Units
from runtime.executor.pool_names import PoolUsage, Usage
from runtime.scheduler.distrust import Distrust
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.kv_events import EventSink, KvEvents
from runtime.scheduler.pending_points import PendingPoints, Save
from runtime.scheduler.request import Holding, Request
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.row_units import Claims, Copies, RowUnits
from runtime.scheduler.waypoints import Waypoints


class Residency:
    """Owns the allocators, the request table and the tree of one scheduler.

    replay_tokens  how far before F to start so that window and state at F are exact; None never
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
        units: Units,
        table: RequestTable,
        replay_tokens: int | None = None,
        reuse: bool = True,
        policy: ResumePolicy | None = None,
        eviction: EvictionPolicy | None = None,
        namespace_tokens: int | None = None,
        event_sink: EventSink | None = None,
    ) -> None:
        self.spec = spec
        self.full, self.swa, self.states = units.full, units.swa, units.states
        self.table = table
        self.cache = ShadowRadixCache(
            spec,
            full=units.full,
            swa=units.swa,
            states=units.states,
            replay_tokens=replay_tokens,
            policy=eviction,
            log_removed=event_sink is not None,
        )
        self._events = None if event_sink is None else KvEvents(self.cache, event_sink)
        self.distrust = Distrust(self.cache, self._events)
        self.reuse = reuse
        self.replay_tokens = replay_tokens
        self.policy = policy or ResumePolicy()
        self._namespace_tokens = namespace_tokens
        self.evictions = Evictions(self.cache)
        self._rows = RowUnits(spec, units, table, self.evictions)
        self.points = PendingPoints(spec, self.cache, self.evictions, live_states=units.live_states)
        self.waypoints = Waypoints(
            spec,
            self.points,
            table=table,
            claims=self._rows.claims(table.rows, table.rows),
            every_tokens=self.policy.waypoint_tokens if reuse else 0,
        )
        self._running: dict[int, Request] = {}
        self._copies = Copies()
        self._pins: list[Lock] = []
        self._lent_points = 0

    # --- admission

    @property
    def rows_used(self) -> int:
        """Requests that hold a row."""
        return len(self._running)

    def has_row(self, *, beside: int = 0) -> bool:
        """Whether one more row, and `beside` after it, can run with all that they may need."""
        claims = self._claims(new=1 + beside)
        return self.table.free > beside and self.points.leaves_room(claims)

    def _claims(self, *, new: int = 0) -> Claims:
        """Return what running rows, and `new` more, may need at most."""
        return self._rows.claims(self.rows_used, len(self._pins) + self._lent_points, new=new)

    def make_point_room(self, position: int) -> bool:
        """Have units free for one more point, beside all that running rows and a new one need."""
        claims = self.points.claims_with_point(self._claims(new=2), position)
        return self.points.leaves_room(claims) and self.evictions.drop_points(
            swa_pages=self.spec.window_pages_at(position), states=int(self.spec.has_state)
        )

    def plan_saves(self, request: Request, start: int, end: int) -> list[Save]:
        """Return the snapshots for resume points in (start, end] of a chunk."""
        saves = self.points.plan_saves(request, start, end, claims=self._claims())
        return saves + self.waypoints.leave(request, start, end)

    def match(self, request: Request) -> Match:
        """Return what the tree has of a waiting request, and where it would start.

        Looking counts for nothing: only who is admitted is a use of what it matched.
        """
        match = self.peek(request)
        lost_tokens = match.full_tokens - match.start
        if lost_tokens >= self.policy.branch_min_tokens and self.waypoints.enter(match):
            return self.peek(request)
        return match

    def peek(self, request: Request) -> Match:
        """Return what the tree alone has of a waiting request; change nothing."""
        tokens = request.tokens[: request.total]
        return self.cache.peek(tokens, limit=request.match_limit, namespace=request.namespace)

    def try_admit(self, request: Request, match: Match, *, reserve_pages: int = 0) -> bool:
        """Give a waiting request a row, its window and state, and pages up to its `total`.

        Takes nothing and returns False when pages or states cannot be had; `reserve_pages` must
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
        # The row needs units of its own while the point that it copies from keeps some.
        if match.point is not None and not self.points.leaves_room(self._claims(new=2).of_states):
            return None
        page = self.spec.page_size
        wanted = div_ceil(request.total, page) - match.full_tokens // page + reserve_pages
        lock = self.cache.lock(match)
        there = self.full.free + self.cache.evictable_pages
        if there >= wanted and self.evictions.make_room(wanted):
            return lock
        self.cache.unlock(lock)
        return None

    def _claim(self, request: Request, match: Match, lock: Lock) -> None:
        """Take a row, what it starts from, and pages.

        All whole pages of the match are shared, also those past the start: their records are
        there, so the tokens in between are computed for what a point would have kept, and not
        written. A replay must not write its first, inexact records at all, so that it copies the
        partial page, too.
        """
        page, start, full = self.spec.page_size, match.start, match.full_tokens
        self.cache.use(match)
        shared = full // page
        replays = match.replays
        wanted = div_ceil(request.total, page) - shared
        row = self.table.claim()
        own = self.full.alloc(wanted)
        self._running[request.id] = request
        self.table.write_pages(row, 0, match.pages[:shared])
        self.table.write_pages(row, shared, own)
        self._rows.start(row, match.point, self._copies)
        self.table.length[row] = start
        if (full if replays else start) > shared * page:
            self._copies.pages.append((int(match.pages[shared]), int(own[0])))
        if match.point is not None:
            self._pins.append(lock)
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
            if self.reuse and self.spec.has_points
            else {},
        )
        if match.point is not None and start < min(match.point.position, request.match_limit):
            self.points.keep_branch(request, match.point, self._copies, claims=self._claims())

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

    def lend(self, match: Match) -> Lock | None:
        """Lock what another replica copies; `take_back` unlocks it.

        None where running rows may need the units of its resume point before that.
        """
        if match.point is not None:
            self._lent_points += 1
            if not self.points.leaves_room(self._claims()):
                self._lent_points -= 1
                return None
        return self.cache.lock(match)

    def take_back(self, lock: Lock) -> None:
        """Unlock what another replica has copied."""
        self._lent_points -= int(lock.point != 0)
        self.cache.unlock(lock)

    # --- growth

    def reserve(self, request: Request, tokens: int) -> bool:
        """Make all that a row needs for so many more tokens its own; False if it cannot be had.

        It can only fail for want of pages, and may be asked again then.
        """
        end, holding = request.scheduled + tokens, request.holding
        missing = div_ceil(end, self.spec.page_size) - holding.num_pages
        if missing > 0:
            if not self.evictions.make_room(missing):
                return False
            own = self.full.alloc(missing)
            self.table.write_pages(request.row, holding.num_pages, own)
            holding.num_pages += missing
        self._rows.grow(request.row, end)
        return True

    # --- publication

    def publish(self, request: Request, *, partial: bool, ended: bool = False) -> None:
        """Insert the committed whole pages into the tree, and the partial one if asked.

        The row's table is rewritten to the tree's pages, the lock moves to the deepest node,
        and pending resume points whose positions are now published are attached.
        """
        page = self.spec.page_size
        tokens = request.committed if partial else request.committed // page * page
        if not self.reuse:
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
        self.note_inserted(insertion, request.namespace)
        if whole > first:
            own = table[first:whole].copy()
            self.table.write_pages(row, first, insertion.pages[first:whole])
            self.full.decref(own)
            request.holding.shared_pages = whole
        request.holding.published = tokens
        self.keep_quota(request.namespace)

    def note_inserted(self, insertion: Insertion, namespace: str) -> None:
        """Announce pages that are new in the tree, if anybody wants to know."""
        if self._events is not None:
            self._events.inserted(insertion, namespace)

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
                request.unseen_end = request.committed < request.total
                request.committed = request.total
            self.publish(request, partial=True, ended=ended)
            self.waypoints.hand_over(request)
            self._leave_end_point(request)
        self.points.drop(request)
        self.waypoints.give_up(request)
        own = slice(holding.shared_pages, holding.num_pages)
        self.full.decref(self.table.page_table[row, own])
        self._rows.give_back(row)
        self.cache.unlock(holding.lock)
        self.table.release(row)
        del self._running[request.id]
        request.leave_row()

    def _leave_end_point(self, request: Request) -> None:
        """Leave a resume point behind all that was fed, of what the row has."""
        position, holding = request.committed, request.holding
        assert request.scheduled == position, f"request {request.id} leaves with a chunk in flight"
        assert holding.lock is not None
        wanted = self.reuse and self.policy.request_end and self.spec.has_points
        if not wanted or position <= request.matched or position < holding.exact_from:
            return
        lent = self._rows.lend(request.row, position, self._copies)
        if lent is None:
            return
        window, state = lent
        self.cache.add_point(
            holding.lock.node,
            position,
            swa_pages=window,
            state=state,
            kind=PointKind.REQUEST_END,
        )
        self._rows.settle(state)

    # --- what is in use

    @property
    def usage(self) -> Usage:
        """What each pool has, and how much of it requests hold now."""
        full, swa, states = self.full, self.swa, self.states
        full_held = full.capacity - full.free - self.cache.evictable_pages
        swa_held = self._rows.swa_held + self.points.swa_held
        states_held = self._rows.states_held + self.points.states_held
        return Usage(
            PoolUsage(full.capacity, full.free, full_held),
            PoolUsage(swa.capacity, swa.free, swa_held),
            PoolUsage(states.capacity, states.free, states_held),
        )

    def references(self, requests: Iterable[Request]) -> Held:
        """Count the references that running requests, and rows, hold on units of each pool."""
        full, swa, states = Counter[int](), Counter[int](), Counter[int]()
        self._rows.count_owned(states)
        for request in requests:
            row, holding = request.row, request.holding
            own = self.table.page_table[row, holding.shared_pages : holding.num_pages]
            full.update(own.tolist())
            self._rows.count(row, swa, states)
            for point in (*holding.pending_points, *holding.waypoints):
                swa.update(point.swa_pages)
                if point.state:
                    states[point.state] += 1
        return full, swa, states
