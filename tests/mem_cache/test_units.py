"""Allocators of one cache, by the sizes of its pools."""

from collections import Counter

from mem_cache.spec import PoolSizes
from mem_cache.units import Units


def test_each_pool_has_its_own_allocator() -> None:
    units = Units(PoolSizes(full_pages=3, swa_pages=4, states=5))

    assert [pool.capacity for pool in (units.full, units.swa, units.states)] == [3, 4, 5]
    assert [pool.free for pool in (units.full, units.swa, units.states)] == [3, 4, 5]
    assert units.live_states == 0


def test_pools_that_a_model_has_not_are_empty() -> None:
    units = Units(PoolSizes(full_pages=3, swa_pages=0, states=0))

    assert (units.swa.free, units.states.free) == (0, 0)
    assert units.swa.alloc(0).tolist() == []


def test_states_in_the_rows_form_are_never_handed_out() -> None:
    units = Units(PoolSizes(full_pages=1, swa_pages=1, states=5, live_states=2))

    units.states.check(Counter({1: 1, 2: 1}))
    assert units.states.alloc(3).tolist() == [3, 4, 5]
