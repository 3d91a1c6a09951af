"""Prefixes from another tree: published in units of the taker's own, or nothing is changed."""

from collections import Counter

import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Generate, Sampling, pack_ids
from runtime.scheduler.kv_event_wire import Event, Stored
from runtime.scheduler.kv_events import KvEvents
from runtime.scheduler.received_prefix import Prefix, Received, receive
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.scheduler_rig import Rig

SIZES = PoolSizes(full_pages=12, swa_pages=24, states=6)
TOKENS = prompt_of(3, 45)
REQUEST = Request(Generate(1, pack_ids(TOKENS), Sampling(4, seed=0)), (), 0.0)


def donor() -> Prefix:
    """Return what another tree has of the first 43 tokens of the request, with a point there."""
    rig = Rig(PoolSizes(full_pages=40, swa_pages=40, states=12))
    rig.send(prompt_of(9, 30), 1)
    rig.send(TOKENS[:43], 1)
    rig.run()
    match = rig.residency.peek(REQUEST)
    assert match.start == match.full_tokens == 43
    return Prefix(match.pages, 43, match.point, turns=2)


def received(residency: Residency, prefix: Prefix, reserve_pages: int = 0) -> Received | None:
    """Receive a prefix of the request; nothing is held afterwards."""
    got = receive(residency, REQUEST, residency.peek(REQUEST), prefix, reserve_pages=reserve_pages)
    assert residency.cache.locks == 0
    residency.cache.check(full=Counter(), swa=Counter(), states=Counter())
    return got


def test_the_request_starts_as_it_would_have_there() -> None:
    residency = Rig(SIZES).residency
    prefix = donor()
    got = received(residency, prefix)

    found = residency.peek(REQUEST)
    assert (found.start, found.full_tokens, found.turns) == (43, 43, 3)
    assert got is not None
    assert prefix.point is not None
    assert found.point is not None
    assert got.pages == [*zip(prefix.pages.tolist(), found.pages.tolist(), strict=True)]
    assert got.swa_pages == [*zip(prefix.point.swa_pages, found.point.swa_pages, strict=True)]
    assert got.states == [(prefix.point.state, found.point.state)]


def test_pages_that_are_there_are_not_wanted_again() -> None:
    rig = Rig(SIZES)
    rig.send(TOKENS[:20], 1)
    rig.run()
    before = rig.residency.peek(REQUEST).pages.tolist()
    got = received(rig.residency, donor())

    assert got is not None
    assert len(got.pages) == 6 - 2
    assert rig.residency.peek(REQUEST).pages.tolist()[:2] == before[:2]
    assert {target for _, target in got.pages}.isdisjoint(before)


def test_a_point_that_is_there_is_not_copied_over() -> None:
    residency = Rig(SIZES).residency
    prefix = donor()
    received(residency, prefix)
    again = received(residency, prefix)

    assert again == Received([], [], [])
    assert residency.cache.points == 1


def test_a_point_one_token_further_on_serves_the_end_alone() -> None:
    residency = Rig(SIZES).residency
    prefix = donor()
    received(residency, Prefix(prefix.pages, 42, prefix.point, turns=0))

    found = residency.peek(REQUEST)
    assert found.point is not None
    assert (found.point.position, found.point.exact, found.start) == (42, True, 42)
    shorter = residency.cache.peek(np.array(TOKENS[:42], np.int32))
    assert shorter.point is None


@pytest.mark.parametrize("reserve_pages", [6, 7])
def test_pages_of_the_whole_request_must_be_there(reserve_pages: int) -> None:
    """Six of the prefix, of which the request copies the last one, and what is reserved."""
    rig = Rig(SIZES)
    got = received(rig.residency, donor(), reserve_pages=reserve_pages - 1)

    assert (got is None) == (reserve_pages == 7)
    assert rig.residency.cache.tree_pages == (0 if got is None else 6)


def test_units_of_a_point_must_be_there_beside_those_of_rows() -> None:
    rig = Rig(PoolSizes(full_pages=60, swa_pages=24, states=3), rows=3)
    for seed in (1, 2):
        rig.send(prompt_of(seed, 9), 200)
    rig.turn_until(lambda: len(rig.replica.sets.decoding) == 2)
    residency = rig.residency
    locks, tree_pages = residency.cache.locks, residency.cache.tree_pages

    got = receive(residency, REQUEST, residency.peek(REQUEST), donor(), reserve_pages=0)
    assert got is None
    assert (residency.cache.locks, residency.cache.tree_pages) == (locks, tree_pages)


def test_without_a_point_only_pages_come() -> None:
    residency = Rig(SIZES, replay=20).residency
    prefix = donor()
    got = received(residency, Prefix(prefix.pages, 40, None, turns=0))

    assert got is not None
    assert (len(got.pages), got.swa_pages, got.states) == (5, [], [])
    assert residency.peek(REQUEST).start == 20


def test_a_page_that_was_evicted_here_is_not_counted_as_computed_again() -> None:
    rig = Rig(SIZES)
    rig.send(TOKENS[:43], 1)
    rig.run()
    rig.residency.cache.evict_full(SIZES.full_pages)
    received(rig.residency, donor())

    assert rig.residency.cache.returned_pages == 0


class Sink:
    """Keeps what is published."""

    hash_key = None

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, events: list[Event], *, time_s: float) -> None:
        """Note events."""
        self.events += events


def test_whole_pages_that_come_are_announced() -> None:
    residency, sink = Rig(SIZES).residency, Sink()
    residency._events = KvEvents(residency.cache, sink)
    received(residency, donor())
    residency.flush_events()

    [stored] = sink.events
    assert isinstance(stored, Stored)
    assert stored.tokens.flatten().tolist() == TOKENS[:40]
