"""The kernels in Triton's interpreter: their tests in this folder's `kernels`, on the CPU."""

import importlib.util
from pathlib import Path

import pytest

from tests.testing.interpreter_run import results


@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_all_kernels_equal_their_references_in_the_interpreter(interpreted: Path) -> None:
    for code, said in results(interpreted):
        assert code == 0, said
