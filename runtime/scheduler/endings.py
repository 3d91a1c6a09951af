"""The ways a request ends, each counted once, and what is freed then."""

import logging
from collections.abc import Callable

from runtime.messages import FinishType
from runtime.scheduler.grammar_gate import GrammarGate
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request, Status
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.stats import Ending, Stats
from runtime.wire.step import NOT_FINITE_REASON

logger = logging.getLogger("umbra.scheduler")


class Endings:
    """Takes requests out of wherever they stand.

    on_change  called when something was freed
    """

    def __init__(
        self,
        residency: Residency,
        *,
        sets: RequestSets,
        gate: GrammarGate,
        stats: Stats,
        replies: Replies,
        on_change: Callable[[], None],
    ) -> None:
        self._residency = residency
        self._sets = sets
        self._gate = gate
        self._stats = stats
        self._replies = replies
        self._on_change = on_change

    def finish(
        self, request: Request, finish: FinishType, *, now_s: float, matched: int | None = None
    ) -> None:
        """End a request that has all it asked for."""
        self._stats.ended(request, "finished")
        request.times.ended(now_s)
        self._replies.finish(request, finish, matched=matched)
        self._end(request)

    def fail(self, request: Request, error: str) -> None:
        """End a request with an error; nothing of its state is kept."""
        logger.warning("Request %d failed: %s", request.id, error)
        self._stats.ended(request, "failed")
        self._replies.finish(request, "error", error=error)
        self._end(request, publish=False)

    def not_finite(self, request: Request) -> None:
        """End a request whose numbers are not finite, or have it computed again.

        What it alone left in the cache is not used again. Where it started from the cache, that may
        be what is wrong: then it is computed once more, from its first token on. Log-probabilities
        of its prompt that are not told yet are, too.
        """
        self._stats.count("not_finite_requests")
        suspect = self._residency.distrust.suspect_of(request)
        self._stats.count("distrusted_pages", self._residency.distrust.own(request))
        if request.suspect or not suspect:
            self.fail(request, NOT_FINITE_REASON)
            return
        logger.warning("Request %d is not finite: compute what was cached, too", request.id)
        self._sets.suspend(request)
        self._residency.release(request, publish=False)
        request.suspect, request.cached_tokens = suspect, 0
        if request.doubt_prompt_logprobs():
            self._replies.forget(request)
        self._on_change()

    def abort(self, request: Request) -> None:
        """End a request that nobody wants more of; tokens that were kept for its end are sent."""
        if not request.stream:
            self._replies.finish(request, "abort", error="aborted on request")
        self.quietly(request, "aborted")

    def time_out(self, request: Request, error: str) -> None:
        """End a request in the middle of its output, which its client gets as far as it is."""
        self._stats.count("timed_out_requests")
        self._replies.finish(request, "abort", error=error)
        self.quietly(request, "aborted")

    def quietly(self, request: Request, how: Ending) -> None:
        """End a request whose client is told by somebody else, or has gone."""
        self._stats.ended(request, how)
        self._replies.forget(request)
        self._end(request)

    def _end(self, request: Request, *, publish: bool = True) -> None:
        if request.status is Status.WAITING:
            self._sets.waiting.remove(request.id)
        elif request.status is Status.SUSPENDED:
            self._sets.leave_running(request)
        else:
            self._sets.leave_running(request)
            self._residency.release(request, publish=publish)
        # Not in `release`: who was retracted comes back for what it left in the tree.
        self._residency.keep_quota(request.namespace)
        self._gate.close(request)
        self._sets.leave(request)
        self._on_change()
