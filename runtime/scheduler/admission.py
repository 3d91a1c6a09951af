"""Who starts next: matched against the tree, or told to wait for a prefix in the making.

What another replica has of a request is copied just before it starts.
"""

from collections.abc import Callable

import numpy as np

from mem_cache.spec import div_ceil
from mem_cache.tree.handles import Match, PointKind
from runtime.scheduler.prefix_copies import Brought
from runtime.scheduler.request import Request, Status
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency

# (request, what its replica has of it, pages to reserve) -> what it can start from.
Bring = Callable[[Request, Match, int], Brought | None]


def _bring_nothing(request: Request, match: Match, reserve_pages: int) -> Brought:
    return Brought(match, 0)


class Admission:
    """Moves requests from the queue into prefill.

    A round runs only when something happened that can change its outcome (`wake`).
    """

    def __init__(
        self,
        sets: RequestSets,
        residency: Residency,
        clock: Callable[[], float],
        bring: Bring | None = None,
    ) -> None:
        """Take the sets and the pools.

        bring  copies what other replicas have of a request; None: there is no other
        """
        self._bring = bring or _bring_nothing
        self._sets = sets
        self._queue = sets.waiting
        self._residency = residency
        self._clock = clock
        self._awake = True
        # Rows given up by then, where a request was passed over for the limit of its share.
        self._limited_at: int | None = None
        # By id of a waiting request: whom it waits for, and until when.
        self._waits: dict[int, tuple[Request, int]] = {}

    def wake(self) -> None:
        """Say that a request arrived, ended, or published."""
        self._awake = True

    def awaits_prefix(self, request: Request) -> bool:
        """Whether a waiting request waits for a prefix that another one computes."""
        other, _ = self._waits.get(request.id, (None, 0))
        return other is not None and other.status is Status.PREFILL

    def admit(self) -> list[Request]:
        """Admit what fits and return it, in order."""
        prefills, decoding = self._sets.prefills, self._sets.decoding
        reserve = len(decoding) + len(decoding.joining)
        admitted: list[Request] = []
        shares = self._sets.shares
        # A row of another replica may have been of a share at its limit here.
        if not self._awake and self._limited_at in (None, shares.stops):
            return admitted
        if not len(self._queue) or not self._residency.has_row():
            if any(request_id not in self._queue for request_id in self._waits):
                self._tell(prefills)
            return admitted
        self._awake, self._limited_at = False, None
        waiting, kept_rows, level = 0, 0, None
        for request in self._ordered():
            if request.level != level:
                # Who waits for a prefix keeps a row free, but for those of its own priority.
                kept_rows, level = waiting, request.level
            if not self._residency.has_row(beside=kept_rows):
                break
            if not shares.has_room(request.share):
                self._limited_at = shares.stops
                continue
            match = self._residency.match(request)
            waits = self._waits_for_prefix(request, match, prefills)
            self._note_start(request, match)
            if waits:
                waiting += 1
                # A request that enough others have passed keeps a row.
                kept_rows += self._queue.is_passed(request)
                continue
            brought = self._bring(request, match, reserve)
            if brought is None:  # more of it is copied in the next step
                self._awake = True
                waiting += 1
                continue
            # A page per decoding row stays free, so that nobody is retracted in this turn: what
            # was admitted launches its copies before any page they name can change hands.
            if not self._residency.try_admit(request, brought.match, reserve_pages=reserve):
                break
            request.note_brought(brought.elsewhere)
            self._sets.start(request)
            admitted.append(request)
        self._tell(prefills)
        return admitted

    def _tell(self, prefills: list[Request]) -> None:
        """Tell prefills who waits for them, as last seen: not all are looked at in each round."""
        for prefill in prefills:
            prefill.await_nobody()
        for request in self._queue:
            other, position = self._waits.get(request.id, (None, 0))
            if other is not None and other.status is Status.PREFILL:
                other.await_by(request, position)
        self._waits = {r.id: self._waits[r.id] for r in self._queue if r.id in self._waits}

    def _ordered(self) -> list[Request]:
        now_s = self._clock()
        candidates = self._queue.candidates(now_s)
        if self._queue.policy == "fcfs":
            return self._queue.order([(request, 0) for request in candidates], now_s)
        ranked: list[tuple[Request, int]] = []
        for request in candidates:
            match = self._residency.match(request)
            self._note_start(request, match)
            ranked.append((request, match.start))
        return self._queue.order(ranked, now_s, rows=self._residency.table.free)

    def _note_start(self, request: Request, match: Match) -> None:
        """Note in the queue where a request would start: behind all that it waits for."""
        other, awaited = self._waits.get(request.id, (None, 0))
        start = max(match.start, request.reach)
        if other is not None and other.status is Status.PREFILL:
            start = max(start, min(awaited, request.common_tokens(other), request.match_limit))
        self._queue.note_start(request, start)

    def _waits_for_prefix(self, request: Request, match: Match, prefills: list[Request]) -> bool:
        """Whether a request being prefilled will leave a resume point worth waiting for.

        If so, that request is asked to leave one where the two part.
        """
        self._waits.pop(request.id, None)
        least = match.start + self._residency.policy.branch_min_tokens
        if not self._residency.reuse or least > request.match_limit:
            return False
        best: tuple[int, Request] | None = None
        for other in prefills:
            if other.status is not Status.PREFILL or other.namespace != request.namespace:
                continue
            # Whole prompts are compared only where it can matter: there may be many of both.
            head = slice(match.start, min(least, other.target))
            if not np.array_equal(request.tokens[match.start : least], other.tokens[head]):
                continue
            boundary = min(request.common_tokens(other), request.match_limit)
            start = _start_behind(other, boundary) if boundary >= least else 0
            if start >= least and (best is None or start > best[0]):
                best = (start, other)
        if best is None:
            return False
        start, other = best
        if start >= other.target - 1:
            start = other.target
        elif start > other.scheduled:
            other.holding.save_positions[start] = PointKind.BRANCH
        # Only whole pages are published before the end, and with them the points inside.
        page = self._residency.spec.page_size
        self._waits[request.id] = other, div_ceil(start, page) * page
        return True


def _start_behind(other: Request, boundary: int) -> int:
    """Return where a request that shares `boundary` tokens with `other` can start once it waited.

    At the boundary if `other` has that still ahead of it; else at the last resume point before it
    that is being published. 0: nowhere. The point at `target` serves `target - 1` too. A replay
    leaves none before it is exact.
    """
    if boundary < other.holding.exact_from:
        return 0
    if boundary > other.scheduled or boundary >= other.target - 1:
        return boundary
    points = (*other.holding.pending_points, *other.holding.waypoints)
    return max((p.position for p in points if p.position <= boundary), default=0)
