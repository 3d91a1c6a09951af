"""Where the tensors of a test are made."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

__all__ = ["device", "placed_on"]

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Make every tensor of a test on the device; an op goes where its tensors are."""
    found = torch.device(request.param)
    with placed_on(found):
        yield found


def placed_on(device: torch.device) -> AbstractContextManager[object]:
    """Make tensors on the device where no other is named.

    Without it that is the CPU already, and under it every call of torch goes through Python.
    """
    return nullcontext() if device.type == "cpu" else device
