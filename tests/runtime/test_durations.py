"""Durations fall into the bucket whose bound they do not exceed."""

import pytest

from runtime.durations import BOUNDS_S, Durations


def test_a_duration_is_counted_where_it_belongs() -> None:
    durations = Durations()
    for seconds in (0.0, 1e-6, 1.5e-6, 0.01, 0.02, 1e4):
        durations.observe(seconds)

    told = durations.told()
    assert told.bounds == list(BOUNDS_S) == sorted(BOUNDS_S)
    assert len(told.counts) == len(told.bounds) + 1
    found = {told.bounds[k]: n for k, n in enumerate(told.counts[:-1]) if n}
    assert found == {1e-6: 2, 2e-6: 1, 0.01: 1, 0.02: 1}
    assert told.counts[-1] == 1
    assert told.sum_s == pytest.approx(1e4 + 0.0300025)


def test_several_durations_are_counted_at_once_by_bounds_of_their_own() -> None:
    durations = Durations((1.0, 2.0))

    durations.observe(1.5, 3)
    durations.observe(4.0)

    told = durations.told()
    assert (told.bounds, told.counts, told.sum_s) == ([1.0, 2.0], [0, 3, 1], 8.5)


def test_what_was_told_changes_no_more() -> None:
    durations = Durations()
    before = durations.told()

    durations.observe(1.0)

    assert sum(before.counts) == 0
