"""Which replica a request goes to: where its prefix is, unless the queue there costs more.

The cost of a replica, in tokens: what is to be computed there before the request, what the request
would compute itself, and a little for each request that is there, whose decoding slows the steps of
all. Where most of the prefix is, a queue that fits into one step counts as none: all replicas step
together. What another replica has of the prefix is copied, which costs little (`copied_cost`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from runtime.scheduler.pending_prefixes import prefix_hashes
from runtime.scheduler.prefix_copies import copied_cost
from runtime.scheduler.replica import Replica
from runtime.scheduler.request import Request, Status

__all__ = ["Placement"]

# What each request of a replica costs, as if it were computed tokens.
ROW_TOKENS = 32
# What waiting for a row costs, for each request that does, as if it were computed tokens.
ROW_WAIT_TOKENS = 2048
# What a step computes where it has no limit.
UNLIMITED_STEP_TOKENS = 8192
# How often requests that wait are looked at for an idle replica, and how many of them.
MOVE_INTERVAL_S = 0.02
MOST_LOOKED_AT = 16
# Whoever has waited so long goes to any replica that is idle, whatever is computed again there.
MOVE_PATIENCE_S = 2.0


class Placement:
    """Chooses replicas. With one replica it costs nothing.

    step_tokens  prompt tokens that a step computes in a replica at most; -1: no limit
    clock        of the arrival times of requests
    """

    def __init__(
        self, replicas: Sequence[Replica], *, step_tokens: int, clock: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._step_tokens = step_tokens if step_tokens > 0 else UNLIMITED_STEP_TOKENS
        self._clock = clock
        self._due_s = clock()

    def choose(self, request: Request) -> tuple[Replica, int]:
        """Return the replica that a new request should wait in, and where it would start there.

        The position is 0 where there is nothing to choose from. It counts what will be copied from
        another replica, which `Request.reach` is told.
        """
        if len(self._replicas) == 1:
            return self._replicas[0], 0
        residency = self._replicas[0].residency
        if residency.reuse:
            request.prefixes = prefix_hashes(
                request.tokens[: request.prompt_tokens],
                page_size=residency.spec.page_size,
                namespace=request.namespace,
            )
        best = self._cheapest(self._costs(request))
        request.reach = best.reach
        return best.replica, best.reach

    def move_waiting(self) -> None:
        """Let requests that never ran, and cannot run where they wait, go to idle replicas."""
        if len(self._replicas) == 1:
            return
        idle = [replica for replica in self._replicas if not replica.sets.by_id]
        full = [replica for replica in self._replicas if len(replica.sets.waiting)]
        if not idle or not full or (now_s := self._clock()) < self._due_s:
            return
        self._due_s = now_s + MOVE_INTERVAL_S
        for replica in full:
            for request in replica.sets.waiting.candidates(now_s)[:MOST_LOOKED_AT]:
                if _can_move(request, replica):
                    patient = now_s - request.arrival_s <= MOVE_PATIENCE_S
                    self._move(request, replica, [replica, *idle] if patient else idle)

    def _move(self, request: Request, replica: Replica, choices: Sequence[Replica]) -> None:
        replica.withdraw(request)
        costs = [cost for cost in self._costs(request) if cost.replica in choices]
        best = self._cheapest(costs)
        request.reach = best.reach
        best.replica.enter(request, start=best.reach)
        if best.replica is not replica:
            best.replica.admit()

    def _costs(self, request: Request) -> "list[_Cost]":
        """Return the cost of each replica."""
        costs = [_Cost.of(request, replica) for replica in self._replicas]
        most = max(cost.cached for cost in costs)
        return [cost.with_copy(most) for cost in costs]

    def _cheapest(self, costs: "Sequence[_Cost]") -> "_Cost":
        """Return the least cost; of equal ones, that of the fewest requests, then the first."""
        best = min(costs, key=lambda cost: (cost.tokens, len(cost.replica.sets.by_id)))
        home = max(costs, key=lambda cost: (cost.start, -cost.tokens))
        if home.tokens - min(home.queued, self._step_tokens) <= best.tokens:
            best = home if home.start > best.start else best
        return best


class _Cost(NamedTuple):
    """What a replica costs a request.

    tokens  all in all
    queued  of these, what is to be computed before the request
    cached  where the request would start by what is in the tree
    start   where it would start by what will be there then, too
    reach   where it would start if what another replica has is copied
    """

    replica: Replica
    tokens: int
    queued: int
    cached: int
    start: int
    reach: int

    @classmethod
    def of(cls, request: Request, replica: Replica) -> "_Cost":
        """Look at a replica.

        A prefix that another request will compute there counts as matched, and not as part of the
        queue, too: it would have to be computed anywhere.
        """
        sets, residency = replica.sets, replica.residency
        cached = residency.peek(request).start
        pages = sets.pending.match(request.prefixes)
        pending = min(pages * residency.spec.page_size, request.match_limit)
        start = max(cached, pending)
        queued = max(0, sets.waiting_uncached_tokens - (start - cached))
        without_row = max(0, len(sets.waiting) + 1 - residency.table.free)
        load = ROW_TOKENS * len(sets.by_id) + ROW_WAIT_TOKENS * without_row
        cost = queued + request.total - start + load
        return cls(replica, cost, queued, cached, start, reach=start)

    def with_copy(self, there: int) -> "_Cost":
        """Return the cost if another replica has all that is needed to start at `there`."""
        gain = there - self.start
        if gain <= 0 or copied_cost(gain) >= gain:
            return self
        return self._replace(tokens=self.tokens - gain + copied_cost(gain), reach=there)


def _can_move(request: Request, replica: Replica) -> bool:
    """Whether a request never ran, and waits for room and nothing else.

    A grammar's output belongs to a replica, as do pieces of a prefix that were copied there.
    """
    return (
        request.status is Status.WAITING
        and request.cached_tokens is None
        and request.constraint is None
        and not request.copied_to
        and not replica.awaits_prefix(request)
    )
