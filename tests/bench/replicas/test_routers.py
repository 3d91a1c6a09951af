"""Policies of routers: what each goes by."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from tests.bench.replicas.routers import Exact, LeastLoad, RandomChoice, RayPrefix, RoundRobin
from tests.bench.replicas.server import Job, Server
from tests.bench.replicas.trace import Call


class StandIn:
    """What routers read of a server."""

    def __init__(self, cached: int = 0, waiting: int = 0, running: int = 0) -> None:
        self.waiting_tokens, self.running, self._cached = waiting, running, cached

    def cached(self, tokens: np.ndarray) -> int:
        return self._cached


def servers(*stand_ins: StandIn) -> Sequence[Server]:
    return cast(Sequence[Server], stand_ins)


def job(number: int, prompt: int = 5120, seed: int = 0) -> Job:
    tokens = np.random.default_rng(seed).integers(1000, size=prompt + 1).astype(np.int32)
    return Job(Call(number, 0.0, prompt, 1, lambda: tokens), 0.0, tokens)


def test_the_simple_ones() -> None:
    found = servers(StandIn(waiting=9), StandIn(waiting=3, running=2), StandIn(waiting=3))
    assert LeastLoad().choose(job(1), found) == 2
    turns = RoundRobin()
    assert [turns.choose(job(k), found) for k in range(4)] == [0, 1, 2, 0]
    draws = RandomChoice(1)
    assert {draws.choose(job(k), found) for k in range(50)} == {0, 1, 2}


def test_the_exact_router_goes_by_announced_pages_and_reported_load() -> None:
    router = Exact(3)
    found = servers(StandIn(), StandIn(cached=4096), StandIn())
    assert router.choose(job(1), found) == 1
    router.poll(servers(StandIn(), StandIn(waiting=200_000), StandIn()))
    assert router.choose(job(2), found) != 1


def test_the_exact_router_counts_prompts_that_are_on_their_way() -> None:
    """Twins that come before the first one is answered go to the same place."""
    router, found = Exact(4), servers(*(StandIn() for _ in range(4)))
    first = job(1)
    k = router.choose(first, found)
    assert router.choose(job(2, seed=9), found) != k
    assert router.choose(job(3), found) == k

    router.answered(first)
    assert router.choose(job(4, seed=7), found) != k
    router.answered(job(3))
    for number in (1, 2, 3, 4):
        router.ended(job(number))
    # Nothing announced it, so nothing is known of it any more: it goes by load.
    assert router.choose(job(5), found) != k


def test_rays_router_follows_the_longest_prefix_that_it_sent() -> None:
    router = RayPrefix(3, seed=1)
    found = servers(StandIn(), StandIn(), StandIn())
    first = router.choose(job(1), found)
    assert router.choose(job(2), found) == first
    # What has less than a tenth in common goes where it has sent the least.
    second = router.choose(job(3, seed=5), found)
    assert second != first
    assert router.choose(job(4, seed=6), found) not in (first, second)
    assert router.choose(job(5, seed=6, prompt=2560), found) not in (first, second)


def test_rays_router_takes_the_shorter_queue_of_two_where_it_minds_balance() -> None:
    loaded = [StandIn(running=30), StandIn(running=2), StandIn(running=30)]
    careless, careful = RayPrefix(3, 1), RayPrefix(3, 1, imbalanced=10)
    for router in (careless, careful):
        while router.choose(job(1), servers(StandIn(), StandIn(), StandIn())) != 0:
            router.__init__(3, router._draw.randrange(1000), router._imbalanced)
    assert {careless.choose(job(2), servers(*loaded)) for _ in range(9)} == {0}
    assert 1 in {careful.choose(job(2), servers(*loaded)) for _ in range(9)}
