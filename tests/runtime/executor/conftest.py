"""The stand-in's network over fused ops, for the tests of its runner."""

from pathlib import Path

import pytest

from tests.testing.fused_rig import DEVICE, FusedRig


@pytest.fixture(scope="session")
def fused(short_folder: Path) -> FusedRig:
    """The stand-in's network."""
    return FusedRig(short_folder)


@pytest.fixture(scope="session")
def exact(fused: FusedRig, stand_in: Path) -> FusedRig:
    """A network whose decode steps and chunks have the same bits, as they have on the CPU."""
    return FusedRig(stand_in, deterministic=True) if DEVICE.type == "cuda" else fused
