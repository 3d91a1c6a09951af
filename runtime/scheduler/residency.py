"""Requests in the cache: match and lock, reserve, publish, slide, snapshot, release.

The only module in which a request meets the tree and the allocators. It never runs anything on
the device: copies and saves are collected here and travel with the next step plan.

    page_table[row]   [ the tree's, locked )[ the row's own, one reference each )
                      0              shared_pages                          num_pages
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.node import Point
from mem_cache.radix import Lock, Match, ShadowRadixCache
from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec, div_ceil
from runtime.scheduler.pending_points import Claims, PendingPoints, Save
from runtime.scheduler.request import Request, Status


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """Where resume points are left; every one costs a ring and up to a window of SWA pages.

    prompt_end         at the end of each prefilled prompt
    request_end        at the end of a finished, aborted or retracted request
    branch_min_tokens  where full pages matched further than the deepest resume point, and where
                       a waiting request will leave a prompt being prefilled: if that saves the
                       next one at least this many tokens
    """

    prompt_end: bool = True
    request_end: bool = True
    branch_min_tokens: int = 64


@dataclass(slots=True)
class Copies:
    """Copies (source, destination) that must run before the next forward pass."""

    pages: list[tuple[int, int]] = field(default_factory=list)
    swa: list[tuple[int, int]] = field(default_factory=list)
    rings: list[tuple[int, int]] = field(default_factory=list)


class Residency:
    """Owns the allocators, the request table and the tree of one scheduler.

    replay_tokens  how far before F to start so that window and ring at F are exact; None never
                   replays
    reuse          False keeps the tree empty: every request is computed cold and freed whole
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
    ) -> None:
        self.spec = spec
        self.full, self.swa, self.rings, self.table = full, swa, rings, table
        self.cache = ShadowRadixCache(spec, full=full, swa=swa, rings=rings)
        self.reuse = reuse
        self._replay_tokens = replay_tokens
        self.policy = policy or ResumePolicy()
        self.points = PendingPoints(spec, self.cache, table)
        self._running: dict[int, Request] = {}
        self._copies = Copies()
        self._pins: list[Lock] = []
        self._sources: list[int] = []

    # --- admission

    @property
    def rows_used(self) -> int:
        """Requests that hold a row."""
        return len(self._running)

    @property
    def has_row(self) -> bool:
        """Whether one more row can run with all the SWA pages and the ring it may need."""
        return self.table.free > 0 and self.points.leaves_room(self._claims(extra_rows=1))

    def _claims(self, *, extra_rows: int = 0) -> Claims:
        """Return what running rows, and `extra_rows` more, may need at most."""
        rows = self.rows_used + extra_rows
        return Claims(swa_pages=rows * self.spec.row_swa_pages, rings=rows + len(self._pins))

    def plan_saves(self, request: Request, start: int, end: int) -> list[Save]:
        """Return the snapshots for resume points wanted in (start, end] of a chunk."""
        return self.points.plan_saves(request, start, end, claims=self._claims())

    def match(self, request: Request) -> Match:
        """Return what the tree has of a waiting request.

        Without a resume point in it the request replays, or starts at 0: a point from which more
        would be computed is left out.
        """
        tokens = request.tokens[: request.total]
        limit = request.match_limit if self.reuse else 0
        match = self.cache.match(tokens, limit=limit, namespace=request.namespace)
        if self._replay_start(match) > match.resume_tokens:
            return dataclasses.replace(match, point=None, resume_tokens=0)
        return match

    def _replay_start(self, match: Match) -> int:
        """Return where a replay to the end of the match begins; 0 for none."""
        if self._replay_tokens is None:
            return 0
        return max(0, match.full_tokens - self._replay_tokens)

    def start_of(self, match: Match) -> int:
        """Return the position of the first token a request with this match computes."""
        return self._replay_start(match) if match.point is None else match.resume_tokens

    def try_admit(self, request: Request, match: Match, *, reserve_pages: int = 0) -> bool:
        """Give a waiting request a row, its window and ring, and pages up to its `total`.

        Takes nothing and returns False when pages or rings cannot be had; `reserve_pages` must
        stay free besides. A lone request whose own match is in the way starts cold instead.
        """
        lock = self._lock_with_room(request, match, reserve_pages)
        if lock is None and self.rows_used == 0 and match.full_tokens:
            match = self.cache.match(request.tokens[:1], limit=0, namespace=request.namespace)
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
        wanted = div_ceil(request.total, page) - match.full_tokens // page
        if self.full.free + self.evictable_pages() < wanted + reserve_pages:
            return None
        lock = self.cache.lock(match)
        if self._make_room(wanted + reserve_pages):
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
        page, start, full = self.spec.page_size, self.start_of(match), match.full_tokens
        shared = full // page
        replays = match.point is None and start > 0
        wanted = div_ceil(request.total, page) - shared
        row = self.table.claim()
        own = self.full.alloc(wanted)
        self._running[request.id] = request
        self.table.page_table[row, :shared] = match.pages[:shared]
        self.table.page_table[row, shared : shared + wanted] = own
        self.table.ring[row] = ring = self._alloc_ring()
        self.table.length[row] = start
        if (full if replays else start) > shared * page:
            source = int(match.pages[shared])
            self.full.incref([source])
            self._sources.append(source)
            self._copies.pages.append((source, int(own[0])))
        if match.point is not None:
            self._copies.rings.append((match.point.ring, ring))
            self._pins.append(lock)
            self._adopt_window(row, start, match.point)
        request.row, request.lock = row, lock
        request.matched = request.committed = request.scheduled = start
        request.shared_pages, request.num_pages = shared, shared + wanted
        request.window_from, request.exact_from = (start, full) if replays else (0, start)
        request.write_from = full if replays else shared * page
        request.published = max(start, request.write_from)
        request.target = request.total
        request.status = Status.PREFILL
        request.save_positions = self._wanted_points(request, match)
        if match.point is not None and start < min(match.point.position, request.match_limit):
            self._copies.rings += self.points.keep_branch(
                request, match.point, claims=self._claims()
            )

    def _wanted_points(self, request: Request, match: Match) -> set[int]:
        wanted: set[int] = set()
        if not self.reuse:
            return wanted
        if self.policy.prompt_end:
            wanted.add(request.target)
        if match.full_tokens - self.start_of(match) >= self.policy.branch_min_tokens:
            wanted.add(match.full_tokens)
        return wanted

    def _adopt_window(self, row: int, position: int, point: Point) -> None:
        """Share the point's SWA pages that end before `position`, and copy the one it is in."""
        size = self.spec.swa_page_size
        for number, page in zip(
            self.spec.window_page_range(point.position), point.swa_pages, strict=True
        ):
            if number * size >= position:
                continue
            if (number + 1) * size > position:
                mine = int(self._alloc_swa(1)[0])
                self._copies.swa.append((page, mine))
            else:
                self.swa.incref([page])
                mine = page
            self.table.window[row, number % self.spec.window_slots] = mine

    def take_copies(self) -> Copies:
        """Return the copies collected since the last call; they must run before the step."""
        copies, self._copies = self._copies, Copies()
        return copies

    def copies_launched(self) -> None:
        """Let go of the pages and resume points that the step just launched copies from."""
        for lock in self._pins:
            self.cache.unlock_point(lock)
        self._pins.clear()
        if self._sources:
            self.full.decref(self._sources)
            self._sources.clear()

    # --- growth

    def try_grow(self, request: Request, position: int) -> bool:
        """Make the page of `position` the row's, if it is not yet; False if there is none."""
        if position // self.spec.page_size < request.num_pages:
            return True
        if not self._make_room(1):
            return False
        self.table.page_table[request.row, request.num_pages] = self.full.alloc(1)[0]
        request.num_pages += 1
        return True

    def slide(self, request: Request, end: int) -> None:
        """Make the row's window table the one after a chunk that ends at `end`.

        Pages that leave the window are given back when the step is settled.
        """
        spec, row = self.spec, request.row
        slots = spec.window_slots
        before = self.table.window[row].copy()
        start = request.scheduled
        held = {n: int(before[n % slots]) for n in spec.window_page_range(start)}
        held = {n: page for n, page in held.items() if page}
        numbers = spec.window_page_range(end)
        missing = [n for n in numbers if n not in held]
        fresh = dict(zip(missing, self._alloc_swa(len(missing)).tolist(), strict=True))
        after = np.zeros_like(before)
        for n in numbers:
            after[n % slots] = held.pop(n, 0) or fresh[n]
        kept = set(after.tolist())
        request.retired_swa.extend(int(p) for p in before if p and int(p) not in kept)
        self.table.window[row] = after

    def slide_one(self, request: Request, position: int) -> None:
        """Give a decoding row the SWA page that `position` opens; its oldest one retires."""
        slot = (position // self.spec.swa_page_size) % self.spec.window_slots
        old = int(self.table.window[request.row, slot])
        self.table.window[request.row, slot] = self._alloc_swa(1)[0]
        if old:
            request.retired_swa.append(old)

    # --- publication

    def publish(self, request: Request, *, partial: bool) -> None:
        """Insert the committed whole pages into the tree, and the partial one if asked.

        The row's table is rewritten to the tree's pages, the lock moves to the deepest node,
        and pending resume points whose positions are now published are attached.
        """
        page = self.spec.page_size
        tokens = request.committed if partial else request.committed // page * page
        if not self.reuse or request.lock is None:
            return
        if tokens <= request.published:
            self.points.place(request)
            return
        row, first, whole = request.row, request.shared_pages, tokens // page
        table = self.table.page_table[row]
        insertion = self.cache.insert(
            request.tokens[:tokens],
            table[: div_ceil(tokens, page)],
            namespace=request.namespace,
            lock=request.lock,
        )
        self.cache.relock(request.lock, insertion.node)
        if whole > first:
            own = table[first:whole].copy()
            table[first:whole] = insertion.pages[first:whole]
            self.full.decref(own)
            request.shared_pages = whole
        request.published = tokens
        self.points.place(request)

    def settle(self, request: Request) -> None:
        """Give back the SWA pages that left the window; the step that read them is over."""
        if request.retired_swa:
            self.swa.decref(request.retired_swa)
            request.retired_swa.clear()

    # --- the end

    def release(self, request: Request, *, publish: bool = True) -> None:
        """Let go of everything a running request holds; its state is published first.

        publish=False is for a request whose state cannot be trusted.
        """
        row, lock = request.row, request.lock
        assert lock is not None
        self.settle(request)
        if publish:
            self.publish(request, partial=True)
            self._leave_end_point(request)
        self.points.drop(request)
        self.full.decref(self.table.page_table[row, request.shared_pages : request.num_pages])
        window = self.table.window[row]
        self.swa.decref(window[window != 0])
        self.rings.decref([int(self.table.ring[row])])
        if lock in self._pins:
            self._pins.remove(lock)
        self.cache.unlock(lock)
        self.table.release(row)
        del self._running[request.id]
        request.row, request.lock = -1, None
        request.shared_pages = request.num_pages = request.published = 0
        request.matched = request.committed = request.scheduled = 0
        request.save_positions = set()

    def _leave_end_point(self, request: Request) -> None:
        position = request.committed
        if not (self.reuse and self.policy.request_end and position) or request.lock is None:
            return
        window = self.table.window[request.row]
        slots = self.spec.window_slots
        pages = [int(window[n % slots]) for n in self.spec.window_page_range(position)]
        if position <= request.matched or position < request.exact_from or not all(pages):
            return
        ring = int(self.table.ring[request.row])
        self.cache.add_point(request.lock.node, position, swa_pages=pages, ring=ring)

    # --- allocation and checks

    def count_references(
        self, request: Request, full: Counter[int], swa: Counter[int], rings: Counter[int]
    ) -> None:
        """Add the references that a running request holds, per unit of each pool."""
        row = request.row
        full.update(self.table.page_table[row, request.shared_pages : request.num_pages].tolist())
        window = self.table.window[row]
        swa.update(window[window != 0].tolist())
        swa.update(request.retired_swa)
        rings[int(self.table.ring[row])] += 1
        for point in request.pending_points:
            swa.update(point.swa_pages)
            rings[point.ring] += 1

    def evictable_pages(self) -> int:
        """Return how many of the tree's pages no running request shares."""
        tables = self.table.page_table
        shared = [tables[r.row, : r.shared_pages] for r in self._running.values()]
        in_use = len(np.unique(np.concatenate(shared))) if shared else 0
        return self.cache.tree_pages - in_use

    def _make_room(self, pages: int) -> bool:
        return self.full.free >= pages or self.cache.evict_full(pages)

    def _alloc_swa(self, count: int) -> np.ndarray:
        if self.swa.free < count:
            self.cache.evict_swa(swa_pages=count)
        return self.swa.alloc(count)

    def _alloc_ring(self) -> int:
        if self.rings.free < 1:
            self.cache.evict_swa(rings=1)
        return int(self.rings.alloc(1)[0])
