"""Schedulers that settle each step before the next, and schedulers that overlap."""

import pytest

from tests.testing import scheduler_rig

# What overlaps has tests of its own, test_overlap*.py; all else twice is for those with time.
TURNS = pytest.param(False, id="in turn")
OVERLAP = pytest.param(True, id="overlap", marks=pytest.mark.slow)


@pytest.fixture(params=[TURNS, OVERLAP])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Have the rigs of a test overlap, or not; return which."""
    overlap = bool(request.param)
    monkeypatch.setattr(scheduler_rig, "OVERLAP", overlap)
    return overlap
