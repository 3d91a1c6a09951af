"""Resume points on their way into the tree: wanted, saved by a step, waiting for their node.

A pending point holds one reference on each of its SWA pages and on its state. It cannot be
evicted, so that it is only made out of what running rows can never need (`Claims`).
"""

from dataclasses import dataclass, replace

import numpy as np

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Point, PointKind
from mem_cache.tree.radix import ShadowRadixCache
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.request import PendingPoint, Request
from runtime.scheduler.row_units import Claims, Copies


@dataclass(frozen=True, slots=True)
class Save:
    """One snapshot of a step: the window and state as they are before `position`.

    state   0 where the model has none
    window  [window_pages] int32, 0 behind the last page
    """

    position: int
    state: int
    window: np.ndarray


class PendingPoints:
    """Makes, counts and places pending points of all requests.

    swa_held, states_held   references that pending points hold
    """

    def __init__(
        self,
        spec: TreeSpec,
        cache: ShadowRadixCache,
        evictions: Evictions,
        *,
        live_states: int = 0,
    ) -> None:
        """Make none yet; `live_states` are never a point's (`Units`)."""
        self._spec = spec
        self._cache = cache
        self._evictions = evictions
        self._swa, self._states = cache.swa, cache.states
        self._live, self._state_each = live_states, int(spec.has_state)
        self.swa_held = 0
        self.states_held = 0

    @property
    def capacity(self) -> int:
        """How many points there can be at most, if no row runs."""
        if self._spec.has_state:
            return self._states.capacity - self._live
        return self._swa.capacity // self._spec.window_pages if self._spec.window else 0

    def claims_with_point(self, claims: Claims, position: int) -> Claims:
        """Return claims beside one more point at `position`."""
        return claims.with_point(self._spec.window_pages_at(position), self._state_each)

    def leaves_room(self, claims: Claims) -> bool:
        """Whether the claims can all be met beside the points that are pending now."""
        return (
            claims.swa_pages + self.swa_held <= self._swa.capacity
            and claims.states + self.states_held <= self._states.capacity - self._live
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
        return point, Save(position, point.state, self._by_slot(window))

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
        if kept.state:
            copies.states.append((point.state, kept.state, point.position))
        copies.swa += zip(point.swa_pages, window, strict=False)

    def _take_window(self, position: int, claims: Claims) -> tuple[int, ...] | None:
        """Take the SWA pages of a point, and see that there is a state for it."""
        count = self._spec.window_pages_at(position)
        if not self.leaves_room(self.claims_with_point(claims, position)):
            return None
        if not self._evictions.drop_points(swa_pages=count, states=self._state_each):
            return None
        return tuple(self._swa.alloc(count).tolist())

    def _by_slot(self, window: tuple[int, ...]) -> np.ndarray:
        slots = np.zeros(self._spec.window_pages, dtype=np.int32)
        slots[: len(window)] = window
        return slots

    def _hold(self, point: PendingPoint) -> PendingPoint:
        """Return a point whose pages are taken with a state that is taken for it."""
        self.swa_held += len(point.swa_pages)
        self.states_held += self._state_each
        return replace(point, state=self._states.take()) if self._state_each else point

    def place(self, request: Request) -> None:
        """Hang the points into the tree whose positions are published and settled by now."""
        waiting: list[PendingPoint] = []
        for point in request.holding.pending_points:
            if point.position > request.seen:
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
            state=point.state,
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
        if point.state:
            self._states.decref([point.state])
        self._forget(point)

    def _forget(self, point: PendingPoint) -> None:
        self.swa_held -= len(point.swa_pages)
        self.states_held -= self._state_each
