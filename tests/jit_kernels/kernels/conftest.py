"""Where kernels run: on the first CUDA device, else on the CPU in Triton's interpreter.

The interpreter must be asked for before triton is imported, so these files are collected only in
a process that has TRITON_INTERPRET=1 (tests/jit_kernels/test_triton_interpreter.py starts one) or
a CUDA device.
"""

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from tests.testing.placement import placed_on

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RUNNABLE = DEVICE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = (
    [] if RUNNABLE and importlib.util.find_spec("triton") is not None else ["test_*.py"]
)


@pytest.fixture(autouse=True)
def device(poisoned_empty: None) -> Iterator[torch.device]:
    """Make every tensor of a test on the device, and poison what kernels allocate."""
    with placed_on(DEVICE):
        yield DEVICE
