"""Which replica a request goes to: where its prefix is, unless the queue there costs more.

The cost of a replica, in tokens: what is to be computed there before the request, what the request
would compute itself, and a little for each request that is there, whose decoding slows the steps of
all. Where most of the prefix is, a queue that fits into one step counts as none: all replicas step
together. Copying a prefix from another replica would make the second part cheaper: `_donor` says
from which one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from runtime.scheduler.pending_prefixes import prefix_hashes
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

        The position is 0 where there is nothing to choose from.
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
        costs = [_Cost.of(request, replica) for replica in self._replicas]
        best = self._cheapest(costs)
        donor = _donor(costs, best)
        if donor is not None:
            best.replica.stats.count("elsewhere_tokens", donor.cached - best.start)
        return best.replica, best.start

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
            for request in replica.sets.waiting.candidates()[:MOST_LOOKED_AT]:
                if _can_move(request, replica):
                    patient = now_s - request.arrival_s <= MOVE_PATIENCE_S
                    self._move(request, replica, [replica, *idle] if patient else idle)

    def _move(self, request: Request, replica: Replica, choices: Sequence[Replica]) -> None:
        replica.withdraw(request)
        best = self._cheapest([_Cost.of(request, choice) for choice in choices])
        best.replica.enter(request, start=best.start)
        if best.replica is not replica:
            best.replica.admit()

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
    """

    replica: Replica
    tokens: int
    queued: int
    cached: int
    start: int

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
        return cls(replica, queued + request.total - start + load, queued, cached, start)


def _donor(costs: Sequence[_Cost], best: _Cost) -> _Cost | None:
    """Return which replica has most of a request in its tree, if that is more than `best` has.

    A prefix would be copied from there. Nothing is copied yet: it is computed again.
    """
    donor = max(costs, key=lambda cost: cost.cached)
    return donor if donor.cached > best.start else None


def _can_move(request: Request, replica: Replica) -> bool:
    """Whether a request never ran, and waits for room and nothing else.

    A grammar's output belongs to a replica.
    """
    return (
        request.status is Status.WAITING
        and request.cached_tokens is None
        and request.constraint is None
        and not replica.awaits_prefix(request)
    )
