"""Where the tensors of a test are made."""

from contextlib import AbstractContextManager, nullcontext

import torch


def placed_on(device: torch.device) -> AbstractContextManager[object]:
    """Make tensors on the device where no other is named.

    Without it that is the CPU already, and under it every call of torch goes through Python.
    """
    return nullcontext() if device.type == "cpu" else device
