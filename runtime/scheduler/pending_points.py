"""Resume points on their way into the tree: wanted, saved by a step, waiting for their node.

A pending point holds one reference on each of its SWA pages and on its ring. It cannot be
evicted, so that it is only made out of what running rows can never need (`Claims`).
"""

from dataclasses import dataclass

import numpy as np

from mem_cache.node import Point
from mem_cache.radix import ShadowRadixCache
from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec
from runtime.scheduler.request import PendingPoint, Request


@dataclass(frozen=True, slots=True)
class Claims:
    """What running rows may need at most, whatever they do next."""

    swa_pages: int
    rings: int


@dataclass(frozen=True, slots=True)
class Save:
    """One snapshot of a step: the window and ring as they are before `position`."""

    position: int
    ring: int
    window: np.ndarray


class PendingPoints:
    """Makes, counts and places pending points of all requests.

    swa_held, rings_held   references that pending points hold
    """

    def __init__(self, spec: TreeSpec, cache: ShadowRadixCache, table: RequestTable) -> None:
        self._spec = spec
        self._cache = cache
        self._swa, self._rings = cache.swa, cache.rings
        self._table = table
        self.swa_held = 0
        self.rings_held = 0

    def leaves_room(self, claims: Claims) -> bool:
        """Whether the claims can all be met beside the points that are pending now."""
        return (
            claims.swa_pages + self.swa_held <= self._swa.capacity
            and claims.rings + self.rings_held <= self._rings.capacity
        )

    def plan_saves(self, request: Request, start: int, end: int, *, claims: Claims) -> list[Save]:
        """Return the snapshots for resume points wanted in (start, end], and make them pending.

        One that finds no room beside the claims is given up.
        """
        saves: list[Save] = []
        for position in sorted(p for p in request.save_positions if start < p <= end):
            request.save_positions.discard(position)
            save = self._try_save(request, position, at_end=position == end, claims=claims)
            if save is not None:
                saves.append(save)
        return saves

    def _try_save(
        self, request: Request, position: int, *, at_end: bool, claims: Claims
    ) -> Save | None:
        """Take a ring, and SWA pages unless the row's own at the chunk's end will do."""
        slots = self._spec.window_slots
        numbers = self._spec.window_page_range(position)
        fresh = 0 if at_end else len(numbers)
        if not self._make_room(claims, swa_pages=fresh):
            return None
        window = np.zeros(slots, dtype=np.int32)
        if at_end:
            window[:] = self._table.window[request.row]
            pages = tuple(int(window[n % slots]) for n in numbers)
            self._swa.incref(pages)
        else:
            pages = tuple(self._swa.alloc(fresh).tolist())
            for number, page in zip(numbers, pages, strict=True):
                window[number % slots] = page
        return Save(position, self._pend(request, position, pages), window)

    def keep_branch(
        self, request: Request, point: Point, *, claims: Claims
    ) -> list[tuple[int, int]]:
        """Leave a point where the request parts from others one token before `point`.

        Others that part there too may be found on another branch, where `point` is not. It has
        the state of `point`, which serves one position less but not two, so that it is exact.
        Returns the ring copy that this takes, or nothing if there is no room for it.
        """
        slots = self._spec.window_slots
        window = self._table.window[request.row]
        numbers = self._spec.window_page_range(request.matched)
        pages = tuple(int(window[n % slots]) for n in numbers)
        if not all(pages) or not self._make_room(claims, swa_pages=0):
            return []
        self._swa.incref(pages)
        return [(point.ring, self._pend(request, request.matched, pages, exact=True))]

    def _make_room(self, claims: Claims, *, swa_pages: int) -> bool:
        wanted = Claims(claims.swa_pages + swa_pages, claims.rings + 1)
        return self.leaves_room(wanted) and self._cache.evict_swa(swa_pages=swa_pages, rings=1)

    def _pend(
        self, request: Request, position: int, pages: tuple[int, ...], *, exact: bool = False
    ) -> int:
        """Add a pending point whose page references are taken; return its new ring."""
        ring = int(self._rings.alloc(1)[0])
        self.swa_held += len(pages)
        self.rings_held += 1
        request.pending_points.append(PendingPoint(position, pages, ring, exact))
        return ring

    def place(self, request: Request) -> None:
        """Hang the points whose positions are published by now into the tree."""
        assert request.lock is not None
        waiting: list[PendingPoint] = []
        for point in request.pending_points:
            if point.position > request.published:
                waiting.append(point)
                continue
            self._cache.add_point(
                request.lock.node,
                point.position,
                swa_pages=point.swa_pages,
                ring=point.ring,
                exact=point.exact,
            )
            self._let_go(point)
        request.pending_points = waiting

    def drop(self, request: Request) -> None:
        """Give up the points that are still pending."""
        for point in request.pending_points:
            self._let_go(point)
        request.pending_points = []

    def _let_go(self, point: PendingPoint) -> None:
        self._swa.decref(point.swa_pages)
        self._rings.decref([point.ring])
        self.swa_held -= len(point.swa_pages)
        self.rings_held -= 1
