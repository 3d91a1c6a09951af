"""Waiting requests and the order in which they are admitted."""

from collections.abc import Iterator
from typing import Literal

from runtime.scheduler.request import Request

Policy = Literal["lpm", "fcfs"]


class WaitingQueue:
    """Requests that hold nothing yet.

    lpm   higher priority, then whoever has waited longer than `patience_s`, then the longest
          prefix in the cache; beyond `ranked` requests only the oldest ones are ranked, so that
          a long queue costs no more than a short one
    fcfs  higher priority, then arrival

    uncached_tokens  that their prefills will compute, as far as is known: see `note_start`
    """

    def __init__(self, policy: Policy, *, patience_s: float = 2.0, ranked: int = 128) -> None:
        self.policy: Policy = policy
        self._patience_s = patience_s
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

    def remove(self, request_id: int) -> Request | None:
        """Take a request out and return it, or None if it is not here."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.uncached_tokens -= self._uncached.pop(request_id)
            key = _prompt_key(request)
            del self._alike[key][request_id]
            if not self._alike[key]:
                del self._alike[key]
        return request

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

    def candidates(self) -> list[Request]:
        """Return the requests to consider in this round: highest priority and oldest first.

        Those whose grammar is not compiled yet are passed over.
        """
        ready = [request for request in self._requests.values() if request.is_ready]
        waiting = sorted(ready, key=lambda r: (-r.priority, r.arrival_s, r.id))
        return waiting[: self._ranked]

    def order(self, ranked: list[tuple[Request, int]], now_s: float) -> list[Request]:
        """Return the candidates, given with their matched tokens, in the order of admission."""
        if self.policy == "fcfs":
            return [request for request, _ in ranked]

        def key(item: tuple[Request, int]) -> tuple[int, int, int, float, int]:
            request, matched = item
            overdue = now_s - request.arrival_s > self._patience_s
            by_match = 0 if overdue else -matched
            return (-request.priority, 0 if overdue else 1, by_match, request.arrival_s, request.id)

        return [request for request, _ in sorted(ranked, key=key)]


def _prompt_key(request: Request) -> tuple[int, int, str]:
    """Return what stays the same of a request and is equal for all with the same prompt."""
    return request.prompt_tokens, request.tail_hash, request.namespace
