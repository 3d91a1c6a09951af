"""Ends requests whose time limit has passed: in the queue, or as a whole."""

from collections.abc import Callable

from runtime.messages import FromScheduler, RefusalReason, Refused
from runtime.scheduler.endings import Endings
from runtime.scheduler.refusals import retry_after_s
from runtime.scheduler.request import Request, Status
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.settings import SchedulerSettings

__all__ = ["Deadlines"]

# Seconds between two looks at all requests.
INTERVAL_S = 0.05


class Deadlines:
    """Time limits of the requests of a replica.

    at_rest  makes a request one that can be ended now; None: it has ended
    send     sends refusals
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        sets: RequestSets,
        *,
        endings: Endings,
        at_rest: Callable[[int], Request | None],
        send: Callable[[FromScheduler], None],
    ) -> None:
        self._queue_s = settings.queue_timeout_s
        self._total_s = settings.request_timeout_s
        self._sets = sets
        self._endings = endings
        self._at_rest = at_rest
        self._send = send
        self._due_s = 0.0

    def expire(self, now_s: float) -> None:
        """End the requests whose time limit has passed. Checks them every `INTERVAL_S`."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + INTERVAL_S
        for request in list(self._sets.by_id.values()):
            limit_s = self._limit_s(request)
            if limit_s is not None and now_s - request.arrival_s >= limit_s:
                self._end(request.id, limit_s)
            elif self._waited_too_long(request, now_s):
                seconds = self._sets.shares.rate.seconds_for(len(self._sets.waiting), now_s)
                self._refuse(
                    request,
                    "queue_timeout",
                    f"no row was free within {self._queue_s:g} s: try again later",
                    retry_s=retry_after_s(seconds),
                )

    def _limit_s(self, request: Request) -> float | None:
        """Return the seconds that a request may take; None: as long as it takes."""
        server_s = None if request.background else self._total_s
        limits = [s for s in (server_s, request.timeout_s) if s is not None]
        return min(limits, default=None)

    def _waited_too_long(self, request: Request, now_s: float) -> bool:
        """Whether a request had no row in which anything was computed, and its time is over."""
        if self._queue_s is None or request.status is not Status.WAITING or request.background:
            return False
        fresh = request.cached_tokens is None and not request.output_tokens
        return fresh and now_s - request.arrival_s >= self._queue_s

    def _end(self, request_id: int, limit_s: float) -> None:
        request = self._at_rest(request_id)
        if request is None:
            return
        text = f"the request took longer than {limit_s:g} s"
        if request.output_tokens:
            self._endings.time_out(request, text)
        else:
            self._refuse(request, "timeout", text)

    def _refuse(
        self, request: Request, reason: RefusalReason, text: str, *, retry_s: int | None = None
    ) -> None:
        self._send(Refused(request.id, reason, text, retry_after_s=retry_s))
        self._endings.quietly(request, "refused")
