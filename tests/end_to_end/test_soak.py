"""The short form of `python -m tests.soak`."""

from itertools import islice

import pytest

from tests.soak.__main__ import soak


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lives", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_traffic_leaves_a_sound_server(lives: int) -> None:
    """The first life checks every step, the second one is as fast as it can be."""
    events = ("cached_tokens", "evicted_pages", "evicted_points", "aborted_requests")

    for life in islice(soak(2.0, clients=8, seed=2, repeats=1, events=events), lives):
        assert life.flushed > 0
        assert life.tally.repeats > 0
        for name in events:
            assert life.state[name] > 0, f"{name}: {life.report()}"
