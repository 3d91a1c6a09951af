"""Units are handed out once, counted, and free again with their last reference."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError, OutOfPages


def test_units_run_from_one_to_capacity_and_the_dummy_is_never_handed_out() -> None:
    pool = PageAllocator("full", 5)

    units = pool.alloc(5)

    assert units.dtype == np.int32
    assert units.tolist() == [1, 2, 3, 4, 5]
    assert pool.free == 0


def test_a_pool_that_is_short_hands_out_nothing_and_says_by_how_much() -> None:
    pool = PageAllocator("swa", 3)
    pool.alloc(1)

    with pytest.raises(OutOfPages, match="pool swa: wanted 3, free 2") as fault:
        pool.alloc(3)

    assert (fault.value.pool, fault.value.wanted, fault.value.free) == ("swa", 3, 2)
    assert pool.free == 2
    pool.check(Counter({1: 1}))


def test_units_can_be_taken_one_by_one() -> None:
    pool = PageAllocator("states", 2)

    assert [pool.take(), pool.take()] == [1, 2]
    with pytest.raises(OutOfPages, match="pool states: wanted 1, free 0"):
        pool.take()
    pool.check(Counter({1: 1, 2: 1}))


def test_units_freed_together_are_handed_out_again_in_the_same_order() -> None:
    pool = PageAllocator("full", 5)
    units = pool.alloc(5)

    pool.decref([4, 2, 5])

    assert pool.alloc(3).tolist() == [4, 2, 5]
    pool.check(Counter(units.tolist()))


def test_a_pool_of_nothing_is_always_short() -> None:
    pool = PageAllocator("swa", 0)

    with pytest.raises(OutOfPages):
        pool.take()
    assert len(pool.alloc(0)) == 0
    pool.check(Counter())


def test_nothing_may_be_asked_for_and_costs_nothing() -> None:
    pool = PageAllocator("swa", 3)

    assert len(pool.alloc(0)) == 0
    assert pool.decref([]) == 0
    pool.incref(())
    pool.check(Counter())


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        PageAllocator("full", 3).alloc(-1)
    with pytest.raises(ValueError, match="-1"):
        PageAllocator("full", -1)


def test_a_unit_is_free_when_its_last_reference_is_dropped() -> None:
    pool = PageAllocator("full", 3)
    units = pool.alloc(2)
    pool.incref(units[:1])

    assert pool.decref(units) == 1
    assert (pool.references(1), pool.references(2)) == (1, 0)
    assert pool.decref([1]) == 1
    assert pool.free == 3


def test_a_unit_named_twice_is_counted_twice_and_freed_once() -> None:
    pool = PageAllocator("full", 3)
    pool.alloc(3)
    pool.incref((2, 2, 3))
    pool.check(Counter({1: 1, 2: 3, 3: 2}))

    assert pool.decref(np.array([2, 3, 2, 2, 3, 1])) == 3
    assert sorted(pool.alloc(3).tolist()) == [1, 2, 3]


@pytest.mark.parametrize("units", [[2], [1, 1], [1, 2, 1], [0], [1, 0]])
def test_a_double_free_is_refused_as_a_whole(units: list[int]) -> None:
    pool = PageAllocator("full", 3)
    pool.alloc(1)

    with pytest.raises(IntegrityError, match="pool full: double free of unit"):
        pool.decref(units)

    pool.check(Counter({1: 1}))


@pytest.mark.parametrize("units", [[2], [1, 2], [0]])
def test_a_reference_to_a_free_unit_is_refused_as_a_whole(units: list[int]) -> None:
    pool = PageAllocator("full", 3)
    pool.alloc(1)

    with pytest.raises(IntegrityError, match=f"reference to free unit {units[-1]}"):
        pool.incref(units)

    pool.check(Counter({1: 1}))


@pytest.mark.parametrize("unit", [-1, 4, 2**30])
def test_a_unit_that_does_not_exist_is_refused(unit: int) -> None:
    pool = PageAllocator("full", 3)
    pool.alloc(3)

    with pytest.raises(IntegrityError, match=f"no unit {unit} of 3"):
        pool.incref([1, unit])
    with pytest.raises(IntegrityError, match=f"no unit {unit} of 3"):
        pool.decref([1, unit])
    with pytest.raises(IntegrityError, match=f"no unit {unit} of 3"):
        pool.references(unit)

    pool.check(np.array([0, 1, 1, 1]))


def test_check_names_a_unit_with_too_many_or_too_few_references() -> None:
    pool = PageAllocator("states", 3)
    pool.alloc(2)

    with pytest.raises(IntegrityError, match="unit 2 has 1 references, 0 are accounted for"):
        pool.check(Counter({1: 1}))
    with pytest.raises(IntegrityError, match="unit 3 has 0 references, 2 are accounted for"):
        pool.check(np.array([0, 1, 1, 2]))
    assert pool.references(0) == 0
    with pytest.raises(IntegrityError, match="unit 0 has 0 references, 1 are accounted for"):
        pool.check(Counter({0: 1, 1: 1, 2: 1}))


@pytest.mark.parametrize("corrupt", ["repeat", "loss", "used"])
def test_check_finds_a_free_list_that_is_wrong(corrupt: str) -> None:
    pool = PageAllocator("states", 4)
    pool.alloc(1)
    if corrupt == "repeat":
        pool._stack[0] = pool._stack[1]
    elif corrupt == "loss":
        pool.pool.free -= 1
    else:
        pool._stack[0] = 1

    with pytest.raises(IntegrityError, match="free list"):
        pool.check(Counter({1: 1}))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 6), max_size=5)), max_size=20))
def test_any_sequence_of_calls_agrees_with_a_counter(calls: list[tuple[int, list[int]]]) -> None:
    pool, model = PageAllocator("full", 6), Counter[int]()
    for call, units in calls:
        wanted = Counter(units)
        if call == 0 and len(units) <= pool.free:
            model.update(pool.alloc(len(units)).tolist())
        elif call == 1 and all(model[unit] for unit in wanted):
            pool.incref(units)
            model.update(units)
        elif call == 3 and pool.free:
            model[pool.take()] += 1
        elif call == 2 and all(model[unit] >= count for unit, count in wanted.items()):
            model.subtract(units)
            assert pool.decref(units) == sum(model[unit] == 0 for unit in wanted)
        pool.check(model)
        assert pool.free == 6 - sum(count > 0 for count in model.values())
