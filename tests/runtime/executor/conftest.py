"""The stand-in's network over fused ops, for the tests of its runner."""

from pathlib import Path

import pytest

from tests.testing.fused_rig import DEVICE, FusedRig, short_stand_in


@pytest.fixture(scope="module")
def fused(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> FusedRig:
    """The stand-in's network."""
    return FusedRig(short_stand_in(stand_in, tmp_path_factory.mktemp("short")))


@pytest.fixture(scope="module")
def exact(fused: FusedRig, stand_in: Path) -> FusedRig:
    """A network whose decode steps and chunks have the same bits, as they have on the CPU."""
    return FusedRig(stand_in, deterministic=True) if DEVICE.type == "cuda" else fused
