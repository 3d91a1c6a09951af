"""On what tests of ops run: the CPU and, where there is one, the first CUDA device.

Kernels run in Triton's interpreter beside all other tests, and the test that waits for it is last.
"""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.testing.interpreter_run import InterpreterRun
from tests.testing.placement import placed_on

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
INTERPRETER = pytest.StashKey[InterpreterRun]()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Make every tensor of a test on the device; an op goes where its tensors are."""
    found = torch.device(request.param)
    with placed_on(found):
        yield found


@pytest.fixture
def interpreter_run(pytestconfig: pytest.Config) -> InterpreterRun:
    """The tests of kernels, which began before the first test."""
    if INTERPRETER not in pytestconfig.stash:
        pytestconfig.stash[INTERPRETER] = InterpreterRun()
    return pytestconfig.stash[INTERPRETER]


def _waits(item: pytest.Item) -> bool:
    return "interpreter_run" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that waits for the interpreter last."""
    items.sort(key=_waits)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the interpreter, if a test is going to wait for it here.

    Which one of pytest-xdist's processes it runs in is not known yet: there it starts late.
    """
    config = session.config
    here = not config.option.collectonly and not hasattr(config, "workerinput")
    wanted = any(map(_waits, session.items)) and importlib.util.find_spec("triton") is not None
    if here and wanted:
        config.stash[INTERPRETER] = InterpreterRun()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no process behind where a run was broken off."""
    if run := config.stash.get(INTERPRETER, None):
        run.stop()
