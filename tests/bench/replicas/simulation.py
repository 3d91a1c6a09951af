"""Replays a trace through replicas behind a router, under a virtual clock."""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.replicas.routers import POLL_S, POOLED, ROUTERS, LeastLoad, Router
from tests.bench.replicas.server import Job, Server, cache_of
from tests.bench.replicas.step_model import StepModel
from tests.bench.replicas.trace import Call

# A client reads an answer for so long before it sends the turn that continues it.
TURN_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trace.

    hit        share of all prompt tokens that were not computed
    ttft_s     [requests] seconds from arrival to first token, sorted
    total_s    mean seconds from arrival to last token
    makespan_s  when the last request ended
    busiest    requests of the busiest replica, over their mean
    """

    hit: float
    ttft_s: np.ndarray
    total_s: float
    makespan_s: float
    busiest: float

    def percentile(self, share: float) -> float:
        """Return the time to first token that this share of requests did not exceed."""
        return float(np.percentile(self.ttft_s, 100 * share, method="inverted_cdf"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of one kind.

    tokens  that the cache of each holds
    """

    replicas: int
    tokens: int
    model: StepModel


def simulate(calls: Sequence[Call], fleet: Fleet, policy: str, *, seed: int = 0) -> Outcome:
    """Return what becomes of a trace with a policy of `ROUTERS`, or with one pooled cache."""
    if policy == POOLED:
        return Simulation(calls, fleet, LeastLoad(), pooled=True).run()
    return Simulation(calls, fleet, ROUTERS[policy](fleet.replicas, seed)).run()


class Simulation:
    """One replay; `run` it once."""

    def __init__(
        self, calls: Sequence[Call], fleet: Fleet, router: Router, *, pooled: bool = False
    ) -> None:
        self._calls = calls
        self._router = router
        count, rows = fleet.replicas, fleet.model.rows
        if pooled:
            caches = [cache_of(count * fleet.tokens, count * rows)] * count
        else:
            caches = [cache_of(fleet.tokens, rows) for _ in range(count)]
        self.servers = [
            Server(cache, fleet.model, answered=self._answered, ended=self._ended)
            for cache in caches
        ]
        self.sent = [0] * count
        self._jobs: list[Job] = []
        self._arrivals: list[tuple[float, int, Call]] = []
        self._order = itertools.count()
        self._followers: dict[int, list[Call]] = {}
        self._next_poll_s = 0.0

    def run(self) -> Outcome:
        """Return what became of all requests, each of which is answered."""
        for call in self._calls:
            if call.after is None:
                self._arrive(call, call.arrival_s)
            else:
                self._followers.setdefault(call.after, []).append(call)
        while True:
            server = min(self.servers, key=_ends)
            arrival_s = self._arrivals[0][0] if self._arrivals else float("inf")
            if arrival_s == _ends(server) == float("inf"):
                break
            if arrival_s < _ends(server):
                if arrival_s >= self._next_poll_s:
                    self._poll(arrival_s)
                self._send(heapq.heappop(self._arrivals)[-1], arrival_s)
            else:
                now_s = _ends(server)
                server.step_ended()
                self._resume(now_s)
        return self._outcome()

    def _resume(self, now_s: float) -> None:
        """Let servers go on that waited for room in a cache that they share."""
        for server in self.servers:
            if server.step is None and server.waiting:
                server.plan(now_s)

    def _poll(self, now_s: float) -> None:
        """Report loads, at the first arrival that is due: others would go unread."""
        self._router.poll(self.servers)
        self._next_poll_s = now_s + POLL_S

    def _arrive(self, call: Call, at_s: float) -> None:
        heapq.heappush(self._arrivals, (at_s, next(self._order), call))

    def _send(self, call: Call, now_s: float) -> None:
        job = Job(call, now_s, call.tokens())
        k = self._router.choose(job, self.servers)
        self.sent[k] += 1
        self._jobs.append(job)
        self.servers[k].submit(job, now_s)

    def _answered(self, server: Server, job: Job) -> None:
        self._router.answered(job)

    def _ended(self, server: Server, job: Job) -> None:
        self._router.ended(job)
        for call in self._followers.pop(job.call.number, ()):
            self._arrive(call, max(call.arrival_s, job.ended_s + TURN_S))

    def _outcome(self) -> Outcome:
        jobs = self._jobs
        if len(jobs) != len(self._calls) or any(job.ended_s < 0 for job in jobs):
            raise AssertionError("a request was lost")
        return Outcome(
            hit=sum(job.cached for job in jobs) / sum(job.call.prompt_tokens for job in jobs),
            ttft_s=np.sort([job.first_s - job.sent_s for job in jobs]),
            total_s=sum(job.ended_s - job.sent_s for job in jobs) / len(jobs),
            makespan_s=max(job.ended_s for job in jobs),
            busiest=max(self.sent) * len(self.sent) / len(jobs),
        )


def _ends(server: Server) -> float:
    return float("inf") if server.step is None else server.step.end_s
