"""What another tree has as well goes first, and only that."""

import numpy as np

from mem_cache.tree.duplicates import cool
from mem_cache.tree.handles import Match
from tests.testing.dictionary_model import Rig

OLD, NEW = [*range(12)], [*range(20, 32)]


def peek(rig: Rig, tokens: list[int]) -> Match:
    """Return what the tree has of tokens and one more."""
    return rig.cache.peek(np.array([*tokens, 99], np.int32))


def full(rig: Rig, tokens: list[int]) -> int:
    """Return how many of the tokens are there."""
    return peek(rig, tokens).full_tokens


def test_pages_and_the_point_go_before_older_ones(rig: Rig) -> None:
    for tokens in (OLD, NEW):
        rig.complete(tokens, 12)
    cool(rig.cache, peek(rig, NEW))
    rig.check()

    rig.evict_swa(states=rig.states.free + 1)
    assert peek(rig, NEW).point is None
    assert peek(rig, OLD).point is not None
    for left in (8, 4, 0):
        rig.evict_full(rig.full.free + 1)
        assert (full(rig, OLD), full(rig, NEW)) == (12, left)
    rig.evict_full(rig.full.free + 1)
    assert full(rig, OLD) == 8


def test_the_next_use_makes_it_young_again(rig: Rig) -> None:
    for tokens in (OLD, NEW):
        rig.complete(tokens, 12)
    cool(rig.cache, peek(rig, NEW))
    rig.match([*NEW, 99])

    rig.evict_swa(states=rig.states.free + 1)
    rig.evict_full(rig.full.free + 1)

    assert (full(rig, OLD), full(rig, NEW)) == (8, 12)
    assert peek(rig, NEW).point is not None


def test_pages_without_a_point_go_first_but_not_what_is_in_use_above_them(rig: Rig) -> None:
    rig.complete(NEW)
    reader = rig.begin([*NEW[:4], 50])
    cool(rig.cache, peek(rig, [99]))
    assert int(rig.cache.arrays.stamp.min()) >= 0

    cool(rig.cache, peek(rig, NEW))

    nodes = rig.cache.arrays.node_of[peek(rig, NEW).pages]
    assert (rig.cache.arrays.stamp[nodes] < 0).tolist() == [False, True, True]
    rig.finish(reader)


def test_what_others_go_on_from_stays_as_it_is(rig: Rig) -> None:
    rig.complete(OLD, 12)
    rig.complete(NEW, 12)
    rig.complete([*NEW, 40, 41], 14)
    cool(rig.cache, peek(rig, NEW))
    assert int(rig.cache.arrays.stamp.min()) >= 0
    assert int(rig.cache.arrays.point_stamp.min()) >= 0

    rig.evict_full(rig.full.free + 1)
    assert full(rig, OLD) == 8


def test_pages_that_lead_to_others_stay_young(rig: Rig) -> None:
    rig.complete([*OLD[:4], 50, 51, 52, 53], 8)
    rig.complete(OLD, 12)
    cool(rig.cache, peek(rig, OLD))

    rig.evict_full(rig.full.free + 2)
    assert full(rig, OLD) == 4
    assert full(rig, [*OLD[:4], 50, 51, 52, 53]) == 8


def test_a_point_on_a_sibling_that_is_in_use_stays_as_it_is(rig: Rig) -> None:
    rig.complete([*NEW[:8]], 6)
    rig.complete([*NEW[:6], 50, 51])
    reader = rig.begin([*NEW[:7], 60])

    cool(rig.cache, peek(rig, [*NEW[:6], 50, 51]))
    rig.check()

    assert int(rig.cache.arrays.stamp.min()) < 0
    assert int(rig.cache.arrays.point_stamp.min()) >= 0
    rig.finish(reader)


def test_what_is_locked_stays_as_it_is(rig: Rig) -> None:
    rig.complete(NEW, 12)
    match = peek(rig, NEW)
    lock = rig.cache.lock(match)
    cool(rig.cache, match)

    assert int(rig.cache.arrays.stamp.min()) >= 0
    rig.cache.unlock(lock)
    cool(rig.cache, match)
    assert int(rig.cache.arrays.stamp.min()) < 0
    rig.evict_full(rig.full.capacity)
    cool(rig.cache, match)
