"""On what tests of ops run: the CPU and, where there is one, the first CUDA device.

Kernels run in Triton's interpreter beside all other tests, and the test that waits for it is last.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testing.interpreter_run import INTERPRETED, InterpreterRun
from tests.testing.placement import device

__all__ = ["device"]


@pytest.fixture
def interpreted(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Where the tests of kernels say how they ended: begun before all tests, if these are all."""
    told: dict[str, Any] = getattr(pytestconfig, "workerinput", {})
    begun = pytestconfig.stash.get(INTERPRETED, None)
    if "interpreted" in told or begun is not None:
        yield Path(told["interpreted"]) if begun is None else begun.folder
        return
    run = InterpreterRun()
    yield run.folder
    run.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that waits for the interpreter last."""
    items.sort(key=lambda item: "interpreted" in getattr(item, "fixturenames", ()))
