"""What tests of layers run on: the CPU and, where there is one, a CUDA device."""

import pytest

from tests.testing.placement import device

__all__ = ["device"]


@pytest.fixture(scope="module", autouse=True)
def _weights(dense_weights_once: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Let the reference be quick with the same weights in many steps."""
