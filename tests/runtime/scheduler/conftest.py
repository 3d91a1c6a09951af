"""Schedulers that settle each step before the next, and schedulers that overlap."""

import pytest

from tests.testing import scheduler_rig


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Have the rigs of a test overlap, or not; return which."""
    overlap = bool(request.param)
    monkeypatch.setattr(scheduler_rig, "OVERLAP", overlap)
    return overlap
