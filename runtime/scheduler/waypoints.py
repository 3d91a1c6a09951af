"""Resume points along running prompts, for requests that nobody has heard of yet.

    step in flight   [ ......... shared ......... )[ the rest )   nobody waits when it is launched
    waypoints             |         |         |         |
    a request comes       shares this much ....^   and starts at the last one before

A point is left where a request that waits parts from a prompt. One that comes when the step which
computes that stretch is on its way, or over, comes too late for that: it would compute the stretch
again. So steps leave a point every so often in any case. They stay out of the tree while their
request runs, unless another one can start there: then that point enters the tree. When the request
ends, those at growing distances from the prompt's end enter the tree, as the first to be evicted,
and the others are given up.
"""

import logging

from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.handles import Match, PointKind
from runtime.executor.pool_names import POINT_FLAGS
from runtime.scheduler.pending_points import PendingPoints, Save
from runtime.scheduler.request import PendingPoint, Request
from runtime.scheduler.row_units import Claims

logger = logging.getLogger("umbra.scheduler")

# What all waypoints together may be of the points that there can be, at most.
SHARE = 1 / 32
MOST_OF_A_PROMPT = 16


class Waypoints:
    """Leaves waypoints, hands them on, and gives them up.

    every_tokens  how far apart, rounded up to whole pages; a long prompt has them further apart, so
                  that there are `MOST_OF_A_PROMPT`; 0: none are left
    claims        what the rows of the table could ever need
    They take nothing of the claims, and are at most a `SHARE` of all points: who had them for the
    longest time loses them then. Pools that have no room for one beside the rows say so in the log.
    """

    def __init__(
        self,
        spec: TreeSpec,
        points: PendingPoints,
        *,
        table: RequestTable,
        claims: Claims,
        every_tokens: int,
    ) -> None:
        self._spec = spec
        self._points = points
        self._table = table
        self._claims = claims
        if not spec.has_points:
            every_tokens = 0
        self._every_tokens = every_tokens
        self._most = int(SHARE * points.capacity) if every_tokens else 0
        why_none = self._why_none(table.rows) if every_tokens else ""
        if why_none:
            logger.warning(
                "prompts leave no resume points as they run: %s, so that prompts which come while "
                "another runs compute again what they share with it",
                why_none,
            )
            self._most = 0
        self._held = 0
        self._holders: dict[int, Request] = {}

    def _why_none(self, rows: int) -> str:
        """Return why there is no room for a waypoint beside so many rows; empty if there is."""
        if self._most == 0:
            most = self._points.capacity
            return f"they may be one of 32 points, and there are at most {most} ({POINT_FLAGS})"
        longest = self._table.page_table.shape[1] * self._spec.page_size
        if self._points.leaves_room(self._points.claims_with_point(self._claims, longest)):
            return ""
        return (
            f"beside {self._claims.swa_pages} SWA pages and {self._claims.states} states that "
            f"{rows} rows may need, the pools have too few ({POINT_FLAGS})"
        )

    def leave(self, request: Request, start: int, end: int) -> list[Save]:
        """Return the snapshots for the waypoints in (start, end], which the request holds then."""
        saves: list[Save] = []
        for position in self._positions(request, start, end):
            if not self._has_room(request):
                break
            taken = self._points.take(position, PointKind.WAYPOINT, claims=self._claims)
            if taken is None:
                break
            point, save = taken
            request.holding.waypoints.append(point)
            self._holders[request.id] = request
            self._held += 1
            saves.append(save)
        return saves

    def _positions(self, request: Request, start: int, end: int) -> list[int]:
        """Return where in (start, end] nobody wants a point yet, and one would be exact."""
        if self._most == 0:
            return []
        page = self._spec.page_size
        least = div_ceil(request.target, MOST_OF_A_PROMPT)
        every = div_ceil(max(self._every_tokens, least), page) * page
        first = max(
            (start // every + 1) * every, div_ceil(request.holding.exact_from, every) * every
        )
        taken = {point.position for point in request.holding.pending_points}
        return [p for p in range(first, min(end + 1, request.target), every) if p not in taken]

    def _has_room(self, request: Request) -> bool:
        while self._held >= self._most:
            oldest = next(iter(self._holders.values()))
            if oldest is request:
                return False
            self.give_up(oldest)
        return True

    def enter(self, match: Match) -> bool:
        """Hang the waypoint into the tree at which a match could start, if there is one.

        Returns whether matching again finds more.
        """
        best: tuple[Request, PendingPoint] | None = None
        for holder in self._holders.values():
            point = self._last_shared(holder, match)
            if point is not None and (best is None or point.position > best[1].position):
                best = holder, point
        if best is None:
            return False
        holder, point = best
        holder.holding.waypoints.remove(point)
        self._points.hang(holder, point)
        self._forget(holder, 1)
        return True

    def _last_shared(self, holder: Request, match: Match) -> PendingPoint | None:
        """Return the last waypoint that the match has all tokens before, and starts before."""
        page, pages = self._spec.page_size, self._table.page_table[holder.row]
        reached = min(match.full_tokens, holder.seen)
        last: PendingPoint | None = None
        for point in holder.holding.waypoints:
            # They stand at ends of pages, and whoever has the tree's page has all before it.
            index = point.position // page - 1
            if point.position > reached or pages[index] != match.pages[index]:
                break
            if point.position > match.start:
                last = point
        return last

    def hand_over(self, request: Request) -> None:
        """Hang the points that a request keeps after its end into the tree; give up the others.

        Each is at least twice as far from the prompt's end as the one behind it: a prompt that
        parts from this one then computes at most as much again as it does not share.
        """
        kept: list[PendingPoint] = []
        least = 0
        for point in reversed(request.holding.waypoints):
            distance = request.target - point.position
            if distance >= least and point.position <= request.seen:
                kept.append(point)
                least = 2 * distance
        for point in reversed(kept):
            request.holding.waypoints.remove(point)
            self._points.hang(request, point)
            self._forget(request, 1)

    def give_up(self, request: Request) -> None:
        """Let go of all that a request holds."""
        count, points = len(request.holding.waypoints), request.holding.waypoints
        request.holding.waypoints = []
        for point in points:
            self._points.let_go(point)
        self._forget(request, count)

    def _forget(self, holder: Request, count: int) -> None:
        self._held -= count
        if not holder.holding.waypoints:
            self._holders.pop(holder.id, None)
