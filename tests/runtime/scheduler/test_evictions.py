"""Evictions are counted by how long they took; what evicts nothing is none."""

import itertools

import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.evictions import Evictions
from tests.testing.scheduler_rig import Rig

SIZES = PoolSizes(full_pages=10, swa_pages=60, states=20)


@pytest.fixture
def rig() -> Rig:
    """A tree with three pages of a request that is over."""
    rig = Rig(SIZES)
    rig.send(list(range(20)), 1)
    rig.run()
    return rig


@pytest.fixture
def evictions(rig: Rig) -> Evictions:
    """Evictions that take a second each."""
    return Evictions(rig.residency.cache, clock=itertools.count().__next__)


def count(evictions: Evictions) -> int:
    return sum(evictions.seconds.told().counts)


def test_room_that_is_there_takes_no_eviction(rig: Rig, evictions: Evictions) -> None:
    assert evictions.make_room(rig.residency.full.free)
    assert evictions.drop_points(swa_pages=1, states=1)

    assert count(evictions) == 0
    assert rig.residency.cache.evicted_pages == rig.residency.cache.evicted_points == 0


def test_pages_are_evicted_and_timed(rig: Rig, evictions: Evictions) -> None:
    assert evictions.make_room(SIZES.full_pages)

    assert rig.residency.full.free == SIZES.full_pages
    assert count(evictions) == 1
    assert evictions.seconds.told().sum_s == 1.0


def test_resume_points_are_dropped_and_timed(rig: Rig, evictions: Evictions) -> None:
    assert evictions.drop_points(states=SIZES.states)

    assert rig.residency.cache.points == 0
    assert count(evictions) == 1


def test_a_namespace_is_shrunk_and_timed(rig: Rig, evictions: Evictions) -> None:
    evictions.shrink("nobody", keep_tokens=0)
    assert count(evictions) == 0

    evictions.shrink("", keep_tokens=0)

    assert rig.residency.cache.tree_pages == 0
    assert count(evictions) == 1


def test_room_that_cannot_be_had_is_told(rig: Rig, evictions: Evictions) -> None:
    assert not evictions.make_room(SIZES.full_pages + 1)
    assert not evictions.drop_points(states=SIZES.states + 1)
