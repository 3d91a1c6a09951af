"""The short form of `python -m tests.soak`."""

import pytest

from tests.soak.__main__ import soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_traffic_leaves_a_sound_server() -> None:
    events = ("cached_tokens", "evicted_pages", "evicted_points", "aborted_requests")
    checked, free = soak(2.0, clients=8, seed=2, repeats=1, events=events)

    for life in (checked, free):
        assert life.flushed > 0
        assert life.tally.repeats > 0
        for name in events:
            assert life.state[name] > 0, f"{name}: {life.report()}"
