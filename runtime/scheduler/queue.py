"""Waiting requests and the order in which they are admitted."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Literal

from runtime.scheduler.request import Request
from runtime.scheduler.shares import FairShares

Policy = Literal["lpm", "fcfs"]


class WaitingQueue:
    """Requests that hold nothing yet.

    lpm   higher priority, then requests that are due, then the longest prefix in the cache;
          beyond `ranked` requests only the oldest ones are ranked, so that a long queue costs no
          more than a short one
    fcfs  higher priority, then arrival

    A request is due once it has waited longer than `patience_s`, or once `most_passed` later
    arrivals of its share and priority have got rows before it. Due requests go in the order of
    arrival: what a request waits for has a bound that the speed of the server does not change.

    This is the order inside a share. Among the requests of one priority the share with the least
    service is next, see `FairShares`.

    Each `aging_s` of waiting counts as one priority more, up to the highest one that waits, so that
    whoever waits long enough is the oldest of that; 0: priorities stay what they are.

    uncached_tokens  that their prefills will compute, as far as is known: see `note_start`
    """

    def __init__(
        self,
        policy: Policy,
        *,
        shares: FairShares | None = None,
        aging_s: float = 0.0,
        patience_s: float = 2.0,
        most_passed: int = 1024,
        ranked: int = 128,
    ) -> None:
        self.policy: Policy = policy
        self.shares = shares or FairShares()
        self._aging_s = aging_s
        self._patience_s = patience_s
        self._most_passed = most_passed
        self._ranked = ranked
        self._requests: dict[int, Request] = {}
        self.uncached_tokens = 0
        self._uncached: dict[int, int] = {}
        # The same, by what twins have in common: a look-up costs nothing however long the queue is.
        self._alike: dict[tuple[int, int, str], dict[int, Request]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """Put a request into the queue; it keeps its arrival time."""
        self._requests[request.id] = request
        self._alike.setdefault(_prompt_key(request), {})[request.id] = request
        self.note_start(request, 0)
        self.shares.enter(request.share)

    def remove(self, request_id: int) -> Request | None:
        """Take a request out and return it, or None if it is not here."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.uncached_tokens -= self._uncached.pop(request_id)
            self.shares.leave(request.share)
            key = _prompt_key(request)
            del self._alike[key][request_id]
            if not self._alike[key]:
                del self._alike[key]
        return request

    def start(self, request: Request) -> None:
        """Take out a request that gets a row, and count it with those that it passes."""
        mine = request.arrival_s, request.id
        for other in self._requests.values():
            if other is request:
                break
            if (other.arrival_s, other.id) < mine and _in_one_line(other, request):
                other.passed += 1
        self.remove(request.id)

    def is_passed(self, request: Request, *, rows: int = 1) -> bool:
        """Whether `rows` more later arrivals that get rows before a request would be too many."""
        return request.passed + rows > self._most_passed

    def note_start(self, request: Request, position: int) -> None:
        """Note where the prefill of a request that waits would start, as last looked up.

        A request that was not looked up yet counts in whole.
        """
        uncached = request.total - position
        self.uncached_tokens += uncached - self._uncached.get(request.id, 0)
        self._uncached[request.id] = uncached

    def twins(self, request: Request) -> list[Request]:
        """Return the waiting requests with the same prompt that have sampled nothing yet.

        In the order in which they came into the queue.
        """
        alike = self._alike.get(_prompt_key(request), {})
        return [other for other in alike.values() if other.is_twin_of(request)]

    def candidates(self, now_s: float) -> list[Request]:
        """Return the requests to consider in this round: highest priority and oldest first.

        Of several shares, each has its oldest among them. Those whose grammar is not compiled yet
        are passed over.
        """
        ready = [request for request in self._requests.values() if request.is_ready]
        self._age(ready, now_s)
        waiting = sorted(ready, key=lambda r: (-r.level, r.arrival_s, r.id))
        if len(waiting) > self._ranked and _several_shares(waiting):
            waiting = self._in_turns(waiting)
        return waiting[: self._ranked]

    def order(
        self, ranked: list[tuple[Request, int]], now_s: float, *, rows: int = 1
    ) -> list[Request]:
        """Return the candidates in the order of admission.

        ranked  the candidates and their matched tokens
        rows    at most so many of them start before the next call
        """
        if self.policy == "fcfs":
            return self._shared_out([request for request, _ in ranked])

        def key(item: tuple[Request, int]) -> tuple[int, int, int, float, int]:
            request, matched = item
            late = now_s - request.arrival_s > self._patience_s
            due = late or self.is_passed(request, rows=rows)
            by_match = 0 if due else -matched
            return (-request.level, 0 if due else 1, by_match, request.arrival_s, request.id)

        return self._shared_out([request for request, _ in sorted(ranked, key=key)])

    def _age(self, requests: Iterable[Request], now_s: float) -> None:
        """Have each request's level be its priority, and what waiting has added."""
        if self._aging_s <= 0:
            return
        top = max((request.priority for request in requests), default=0)
        for request in requests:
            steps = int((now_s - request.arrival_s) / self._aging_s)
            request.level = min(request.priority + steps, top)

    def _in_turns(self, waiting: list[Request]) -> list[Request]:
        """Return the requests of each level by turns: the first of each share, then the second."""
        seen = Counter[tuple[int, str]]()
        turns: list[tuple[int, int, float]] = []
        for request in waiting:
            place = request.level, request.share.name
            turns.append((-request.level, seen[place], self.shares.service(request.share)))
            seen[place] += 1
        order = sorted(range(len(waiting)), key=turns.__getitem__)
        return [waiting[k] for k in order]

    def _shared_out(self, ordered: list[Request]) -> list[Request]:
        """Return requests such that, in each level, the share with the least service is next.

        Each request counts as if it got a row, with the tokens that its prefill will compute.
        """
        if not _several_shares(ordered):
            return ordered
        service = {r.share.name: self.shares.service(r.share) for r in ordered}
        result: list[Request] = []
        for _, level in groupby(ordered, key=lambda request: request.level):
            lines: dict[str, deque[Request]] = {}
            for request in level:
                lines.setdefault(request.share.name, deque()).append(request)
            heap = [(service[name], k, name) for k, name in enumerate(lines)]
            heapify(heap)
            while heap:
                _, k, name = heap[0]
                request = lines[name].popleft()
                result.append(request)
                service[name] += self._uncached[request.id] / request.share.weight
                if lines[name]:
                    heapreplace(heap, (service[name], k, name))
                else:
                    heappop(heap)
        return result


def _in_one_line(one: Request, other: Request) -> bool:
    """Whether the order of arrival decides between two requests: one share, one priority."""
    return one.level == other.level and one.share.name == other.share.name


def _several_shares(requests: list[Request]) -> bool:
    return any(request.share.name != requests[0].share.name for request in requests)


def _prompt_key(request: Request) -> tuple[int, int, str]:
    """Return what stays the same of a request and is equal for all with the same prompt."""
    return request.prompt_tokens, request.tail_hash, request.namespace
