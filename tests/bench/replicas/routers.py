"""Policies of routers: which server gets the next request of a simulation.

exact         ours: `runtime.replicas.choice`, from what servers announce and what was sent
least-load    fewest prompt tokens to compute, as servers report them at that moment
random, round-robin
ray-prefix    Ray Serve's PrefixCacheAffinityRouter: a tree of the prompts that it has sent
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from runtime.replicas.choice import COSTS, Candidate, ChoiceCosts, Intake, choose
from tests.bench.replicas.server import Job, Server
from tests.bench.replicas.trace import PAGE, page_hashes

# Seconds between two reports of load.
POLL_S = 0.25


class Router(Protocol):
    """What the simulation asks of a policy."""

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return the number of the server that gets a request, which is then sent there."""
        ...

    def poll(self, servers: Sequence[Server]) -> None:
        """Take in what servers report every `POLL_S`."""
        ...

    def answered(self, job: Job) -> None:
        """Note a request's first token."""
        ...

    def ended(self, job: Job) -> None:
        """Note a request's last token."""
        ...


class _Stateless:
    def poll(self, servers: Sequence[Server]) -> None: ...
    def answered(self, job: Job) -> None: ...
    def ended(self, job: Job) -> None: ...


class RandomChoice(_Stateless):
    """Any server."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return a random one."""
        return self._draw.randrange(len(servers))


class RoundRobin(_Stateless):
    """One after the other."""

    def __init__(self) -> None:
        self._next = -1

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return the one after the last."""
        self._next += 1
        return self._next % len(servers)


class LeastLoad(_Stateless):
    """The server with the fewest prompt tokens to compute, then with the fewest requests."""

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return the least loaded one."""
        loads = [(server.waiting_tokens, server.running, k) for k, server in enumerate(servers)]
        return min(loads)[-1]


class Exact:
    """The routing policy of `runtime.replicas`.

    It knows the whole pages that each server has announced, the load that each reports every
    `POLL_S`, and what it has sent itself: requests since that report, and prompts without an
    answer yet, which will be cached when those behind them are computed.
    """

    def __init__(self, replicas: int, costs: ChoiceCosts = COSTS) -> None:
        self._costs = costs
        self._intake = Intake()
        self._pending = [Counter[int]() for _ in range(replicas)]
        self._owed = [0] * replicas
        self._running = [0] * replicas
        self._sent: dict[int, tuple[int, list[int]]] = {}

    def poll(self, servers: Sequence[Server]) -> None:
        """Take in the reported loads."""
        self._owed = [server.waiting_tokens for server in servers]

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return the server that the policy chooses."""
        prompt = job.call.prompt_tokens
        hashes = page_hashes(job.tokens[:prompt])
        candidates: list[Candidate] = []
        for k, server in enumerate(servers):
            pending, name = self._pending[k], str(k)
            coming = next((n for n, page in enumerate(hashes) if page not in pending), len(hashes))
            matched = max(server.cached(job.tokens[:prompt]), coming * PAGE)
            intake = self._intake.of(name)
            candidates.append(Candidate(name, matched, self._owed[k], self._running[k], intake))
        found = choose(candidates, prompt, costs=self._costs)
        k, owed = int(found.replica), prompt - min(prompt, found.matched_tokens)
        self._intake.note(found.replica, owed)
        self._pending[k].update(hashes)
        self._owed[k] += owed
        self._running[k] += 1
        self._sent[job.call.number] = k, hashes
        return k

    def answered(self, job: Job) -> None:
        """Its prompt is announced from now on."""
        k, hashes = self._sent[job.call.number]
        pending = self._pending[k]
        pending.subtract(hashes)
        for page in hashes:
            if not pending[page]:
                del pending[page]

    def ended(self, job: Job) -> None:
        """It runs no more."""
        self._running[self._sent.pop(job.call.number)[0]] -= 1


class RayPrefix(_Stateless):
    """Ray Serve's prefix router, with its defaults, in pages instead of characters.

    A prompt goes to a replica with the longest known prefix; with less than 10 % known, to the one
    that the tree has least of; of several, to that with the fewer requests of two at random. The
    tree holds prompts that were sent, no answers, and forgets nothing (`do_eviction` is off). While
    the numbers of requests differ by more than `imbalanced`, two at random are compared instead.

    Source: ray 2.60, `ray/llm/_internal/serve/routing_policies/prefix_aware`.
    """

    MATCH_RATE = 0.1

    def __init__(self, replicas: int, seed: int, imbalanced: float = float("inf")) -> None:
        self._draw = random.Random(seed)
        self._known: dict[int, set[int]] = {}
        self._pages = [0] * replicas
        self._imbalanced = imbalanced

    def choose(self, job: Job, servers: Sequence[Server]) -> int:
        """Return the server that Ray's policy chooses, and remember the prompt."""
        hashes = page_hashes(job.tokens[: job.call.prompt_tokens])
        loads = [server.running for server in servers]
        if max(loads) - min(loads) > self._imbalanced:
            found = list(range(len(servers)))
        else:
            found = self._matching(hashes)
        pair = self._draw.sample(found, min(2, len(found)))
        k = min(pair, key=loads.__getitem__)
        for page in hashes:
            tenants = self._known.setdefault(page, set())
            self._pages[k] += k not in tenants
            tenants.add(k)
        return k

    def _matching(self, hashes: list[int]) -> list[int]:
        """Return the replicas to choose from while loads are balanced."""
        tenants: set[int] = set()
        matched = 0
        for page in hashes:
            deeper = self._known.get(page)
            if not deeper:
                break
            matched, tenants = matched + 1, deeper
        if matched < self.MATCH_RATE * len(hashes) or not matched:
            least = min(self._pages)
            return [k for k, pages in enumerate(self._pages) if pages == least]
        return sorted(tenants)


# Policy -> a router for so many replicas, with a seed for what it draws.
ROUTERS: dict[str, Callable[[int, int], Router]] = {
    "exact": lambda replicas, seed: Exact(replicas),
    "least-load": lambda replicas, seed: LeastLoad(),
    "round-robin": lambda replicas, seed: RoundRobin(),
    "random": lambda replicas, seed: RandomChoice(seed),
    "ray-prefix": RayPrefix,
}
# Not a router: one cache of all bytes, in front of it servers that are chosen by load.
POOLED = "pooled"
