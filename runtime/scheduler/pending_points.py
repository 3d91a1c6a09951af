"""Resume points on their way into the tree: wanted, saved by a step, waiting for their node.

A pending point holds one reference on each of its SWA pages and on its ring. It cannot be
evicted, so that it is only made out of what running rows can never need (`Claims`).
"""

from dataclasses import dataclass, field, replace

import numpy as np

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Point, PointKind
from mem_cache.tree.radix import ShadowRadixCache
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.request import PendingPoint, Request


@dataclass(frozen=True, slots=True)
class Claims:
    """What running rows may need at most, whatever they do next."""

    swa_pages: int
    rings: int

    def with_point(self, swa_pages: int) -> "Claims":
        """Return them beside one more point, whose window has so many pages."""
        return Claims(self.swa_pages + swa_pages, self.rings + 1)


@dataclass(frozen=True, slots=True)
class Save:
    """One snapshot of a step: the window and ring as they are before `position`."""

    position: int
    ring: int
    window: np.ndarray


@dataclass(slots=True)
class Copies:
    """Copies (source, destination) that must run before the next forward pass."""

    pages: list[tuple[int, int]] = field(default_factory=list)
    swa: list[tuple[int, int]] = field(default_factory=list)
    rings: list[tuple[int, int]] = field(default_factory=list)


class PendingPoints:
    """Makes, counts and places pending points of all requests.

    swa_held, rings_held   references that pending points hold
    """

    def __init__(self, spec: TreeSpec, cache: ShadowRadixCache, evictions: Evictions) -> None:
        self._spec = spec
        self._cache = cache
        self._evictions = evictions
        self._swa, self._rings = cache.swa, cache.rings
        self.swa_held = 0
        self.rings_held = 0

    @property
    def capacity(self) -> int:
        """How many points there can be at most, if no row runs."""
        return self._rings.capacity

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
        for position in sorted(p for p in request.holding.save_positions if start < p <= end):
            kind = request.holding.save_positions.pop(position)
            taken = self.take(position, kind, claims=claims)
            if taken is not None:
                request.holding.pending_points.append(taken[0])
                saves.append(taken[1])
        return saves

    def take(
        self, position: int, kind: PointKind, *, claims: Claims
    ) -> tuple[PendingPoint, Save] | None:
        """Return a point and the snapshot that fills it, or None without room for it.

        The caller keeps the point, and gives it to `hang` or to `let_go`.
        """
        window = self._take_window(position, claims)
        if window is None:
            return None
        point = self._hold(PendingPoint(position, window, 0, kind))
        return point, Save(position, point.ring, self._by_slot(window))

    def keep_branch(
        self, request: Request, point: Point, copies: Copies, *, claims: Claims
    ) -> None:
        """Leave a point where the request parts from others one token before `point`, if it can.

        Others that part there too may be found on another branch, where `point` is not. It has
        the state of `point`, which serves one position less but not two, so that it is exact.
        copies  what must be copied for it is added
        """
        window = self._take_window(request.matched, claims)
        if window is None:
            return
        kept = self._hold(PendingPoint(request.matched, window, 0, PointKind.BRANCH, exact=True))
        request.holding.pending_points.append(kept)
        copies.rings.append((point.ring, kept.ring))
        copies.swa += zip(point.swa_pages, window, strict=False)

    def _take_window(self, position: int, claims: Claims) -> tuple[int, ...] | None:
        """Take the SWA pages of a point, and see that there is a ring for it."""
        count = self._spec.window_pages_at(position)
        if not self._make_room(claims, swa_pages=count):
            return None
        return tuple(self._swa.alloc(count).tolist())

    def _by_slot(self, window: tuple[int, ...]) -> np.ndarray:
        slots = np.zeros(self._spec.window_pages, dtype=np.int32)
        slots[: len(window)] = window
        return slots

    def _make_room(self, claims: Claims, *, swa_pages: int) -> bool:
        if not self.leaves_room(claims.with_point(swa_pages)):
            return False
        return self._evictions.drop_points(swa_pages=swa_pages, rings=1)

    def _hold(self, point: PendingPoint) -> PendingPoint:
        """Return a point whose pages are taken with a ring that is taken for it."""
        self.swa_held += len(point.swa_pages)
        self.rings_held += 1
        return replace(point, ring=self._rings.take())

    def place(self, request: Request) -> None:
        """Hang the points whose positions are published by now into the tree."""
        waiting: list[PendingPoint] = []
        for point in request.holding.pending_points:
            if point.position > request.holding.published:
                waiting.append(point)
            else:
                self.hang(request, point)
        request.holding.pending_points = waiting

    def hang(self, request: Request, point: PendingPoint) -> None:
        """Hang one of a running request's points into the tree; its position is published."""
        assert request.holding.lock is not None
        self._cache.add_point(
            request.holding.lock.node,
            point.position,
            swa_pages=point.swa_pages,
            ring=point.ring,
            exact=point.exact,
            kind=point.kind,
            give=True,
        )
        self._forget(point)

    def drop(self, request: Request) -> None:
        """Give up the points that are still pending."""
        for point in request.holding.pending_points:
            self.let_go(point)
        request.holding.pending_points = []

    def let_go(self, point: PendingPoint) -> None:
        """Drop a point's references."""
        self._swa.decref(point.swa_pages)
        self._rings.decref([point.ring])
        self._forget(point)

    def _forget(self, point: PendingPoint) -> None:
        self.swa_held -= len(point.swa_pages)
        self.rings_held -= 1
