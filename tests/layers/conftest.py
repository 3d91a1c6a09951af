"""What tests of layers run on: the CPU and, where there is one, a CUDA device."""

from collections.abc import Iterator

import pytest
import torch

from tests.testing.placement import placed_on

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Make every tensor of a test on the device; an op goes where its tensors are."""
    found = torch.device(request.param)
    with placed_on(found):
        yield found


@pytest.fixture(scope="module", autouse=True)
def _weights(dense_weights_once: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Let the reference be quick with the same weights in many steps."""
