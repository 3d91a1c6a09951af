"""Which replica a request goes to: where its prefix is, unless the queue there costs more.

The cost of a replica, in tokens: what is to be computed there before the request, and what the
request would compute itself. Copying a prefix from another replica would make the second part
cheaper: `donor` says from which one.
"""

from collections.abc import Callable, Sequence

from runtime.scheduler.pending_prefixes import prefix_hashes
from runtime.scheduler.replica import Replica
from runtime.scheduler.request import Request, Status

__all__ = ["Placement"]

# What each request without a free row costs those behind it, as if it were computed tokens.
ROW_WAIT_TOKENS = 2048
# How often requests that wait are looked at for an idle replica, and how many of them.
MOVE_INTERVAL_S = 0.02
MOST_LOOKED_AT = 16
# Whoever has waited so long goes to any replica that is idle, whatever is computed again there.
MOVE_PATIENCE_S = 2.0


class Placement:
    """Chooses replicas. With one replica it costs nothing.

    clock  of the arrival times of requests
    """

    def __init__(self, replicas: Sequence[Replica], clock: Callable[[], float]) -> None:
        self._replicas = replicas
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
        replica, start = self._cheapest(request, self._replicas)
        donor = self.donor(request, replica, start)
        if donor is not None:
            replica.stats.count("elsewhere_tokens", donor[1] - start)
        return replica, start

    def donor(self, request: Request, to: Replica, start: int) -> tuple[Replica, int] | None:
        """Return the replica whose tree has most of a request, and up to where it could start.

        start  where it starts in the replica `to`
        None: no other tree has more. Nothing is copied between replicas yet.
        """
        others = [replica for replica in self._replicas if replica is not to]
        starts = [(replica.residency.peek(request).start, replica) for replica in others]
        best, replica = max(starts, key=lambda pair: pair[0])
        return (replica, best) if best > start else None

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
        chosen, start = self._cheapest(request, choices)
        chosen.enter(request, start=start)
        if chosen is not replica:
            chosen.admit()

    def _cheapest(self, request: Request, replicas: Sequence[Replica]) -> tuple[Replica, int]:
        """Return the replica of the least cost, and where the request would start there.

        Of equal ones, that with the fewest requests, then the first.
        """
        costs = [(_cost(request, replica), replica) for replica in replicas]
        (_, start), replica = min(costs, key=lambda pair: (pair[0][0], len(pair[1].sets.by_id)))
        return replica, start


def _cost(request: Request, replica: Replica) -> tuple[int, int]:
    """Return what a replica costs a request in tokens, and where it would start there.

    A prefix that another request will compute there counts as matched, and not as part of the
    queue, too: somebody has to compute it anywhere.
    """
    sets, residency = replica.sets, replica.residency
    there = residency.peek(request).start
    pages = sets.pending.match(request.prefixes)
    pending = min(pages * residency.spec.page_size, request.match_limit)
    start = max(there, pending)
    queued = max(0, sets.waiting_uncached_tokens - (start - there))
    waiting = len(sets.waiting) + 1 - residency.table.free
    return queued + request.total - start + max(0, waiting) * ROW_WAIT_TOKENS, start


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
