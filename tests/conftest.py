"""What every test has or may ask for: seeds, one thread, memory, the oracle; the GPU markers."""

import gc
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.testing.interpreter_run import INTERPRETED, InterpreterRun

if TYPE_CHECKING:
    from tests.testing.server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
# Any other one gives every test other random inputs.
SEED = int(os.environ.get("UMBRA_SEED", "0"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite between two processes, file by file; `-n 0` keeps it in one.

    A file alone is done sooner in one, and on a GPU two would take each other's memory. More than
    two would be too many for the servers that tests start and the times that some of them keep.
    The kernels' tests in the interpreter begin beside the whole suite in any case.
    """
    keep_bytecode()
    options = config.option
    part = options.markexpr != "not slow" or options.keyword or options.file_or_dir
    whole = not (part or options.collectonly or options.usepdb or options.version)
    if not whole or hasattr(config, "workerinput"):
        return
    if importlib.util.find_spec("triton") is not None:
        config.stash[INTERPRETED] = InterpreterRun()
    if not config.pluginmanager.hasplugin("xdist") or options.numprocesses is not None:
        return
    if (os.cpu_count() or 1) >= WORKERS and not _cuda_devices():
        options.numprocesses, options.dist = WORKERS, "loadfile"
        # As they are collected: else files of one long test come last, and one process waits.
        options.loadscopereorder = False


def keep_bytecode() -> None:
    """Let Python keep what it compiles, though the environment forbids it, as in many containers.

    Tests start some two hundred processes: each would compile all of its modules again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process where the kernels' tests say how they ended."""
    if run := node.config.stash.get(INTERPRETED, None):
        node.workerinput["interpreted"] = str(run.folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out files that share a server at once; None: as `--dist` says."""
    if config.option.dist != "loadfile":
        return None
    from tests.testing.shared_servers import LoadServers

    return LoadServers(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no process and no folder behind."""
    if run := config.stash.get(INTERPRETED, None):
        run.stop()


def pytest_configure() -> None:
    """Let no machine be too slow for Hypothesis: neither for an example nor for making one."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=(HealthCheck.too_slow,)
    )
    settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor among what was.

    What is imported and collected stays to the end, and is so much that a third of the time would
    go into looking through it again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs more CUDA devices than there are, and say so."""
    wanted = {"gpu": 1, "multi_gpu": 2}
    marked = [(item, name) for item in items for name in wanted if item.get_closest_marker(name)]
    if not marked:
        return
    found = _cuda_devices()
    for item, name in marked:
        if found < wanted[name]:
            reason = f"needs {wanted[name]} CUDA device(s), found {found}"
            item.add_marker(pytest.mark.skip(reason=reason))


def _cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:  # pyright: ignore[reportUnusedFunction]
    """Seed every generator; torch only where the test already imported it.

    It computes on one thread: on tensors this small threads wait for each other, and for the
    processes that a test has started.
    """
    random.seed(SEED)
    np.random.seed(SEED)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(SEED)
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def oracle_dir() -> Path:
    """Folder of the reference checkpoints: $UMBRA_ORACLE, or shared/oracle beside the checkout."""
    named = os.environ.get("UMBRA_ORACLE")
    folder = Path(named) if named else ROOT.parent / "shared" / "oracle"
    if not folder.is_dir():
        pytest.skip("no reference checkpoints: set UMBRA_ORACLE to the folder that has v4_small")
    return folder


@pytest.fixture(scope="session")
def oracle_v4_small(oracle_dir: Path) -> Path:
    """The six-layer checkpoint with its reference outputs."""
    folder = oracle_dir / "v4_small"
    if not (folder / "ref.json").is_file():
        pytest.skip(f"no v4_small in {oracle_dir.name}")
    return folder


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a tiny untrained model; see tests/testing/stand_in."""
    from tests.testing.stand_in.folder import write_stand_in

    return write_stand_in(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="session")
def short_folder(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the network of CUDA devices; with fewer layers where there is none."""
    from tests.testing.fused_rig import short_stand_in

    return short_stand_in(stand_in, tmp_path_factory.mktemp("short_stand_in"))


@pytest.fixture(scope="session")
def narrow_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in with narrow layers, for tests of what is around the network."""
    from tests.testing.stand_in.folder import NARROW, write_stand_in

    return write_stand_in(tmp_path_factory.mktemp("narrow_stand_in"), **NARROW)


@pytest.fixture(scope="session")
def _default_server() -> Iterator["ServerProcess"]:  # pyright: ignore[reportUnusedFunction]
    from tests.testing.server_process import running_server

    with running_server("--random-seed", "0") as server:
        yield server


@pytest.fixture(scope="module")
def default_server(_default_server: "ServerProcess") -> "ServerProcess":
    """What `python launch_server.py` serves, with a seed and an empty cache."""
    from tests.end_to_end.pools import emptied

    return emptied(_default_server)


@pytest.fixture(scope="module")
def dense_weights_once() -> Iterator[None]:
    """Work out the numbers of fp8 and fp4 weights once, not in every product of the reference."""
    from tests.testing.dense_once import dense_once

    with dense_once():
        yield


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what `torch.empty` and its kin return: floats with NaN, integers with their minimum.

    A kernel or cache that reads memory before writing it then fails instead of passing by luck.
    Bytes are 0xff, which is NaN as e4m3 and as e8m0.
    """
    import torch

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bool or not tensor.numel():
            return tensor
        if tensor.element_size() == 1:
            tensor.view(torch.uint8).fill_(0xFF)
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.fill_(torch.nan)
        else:
            tensor.fill_(torch.iinfo(tensor.dtype).min)
        return tensor

    def poisoned(make: Callable[..., torch.Tensor], places: bool) -> Callable[..., torch.Tensor]:
        def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
            # What `with device:` means is not known of a function that took another's place.
            if places and kwargs.get("device") is None:
                kwargs["device"] = torch.get_default_device()
            return poison(make(*args, **kwargs))

        return empty

    # The first `with device:` notes for good which functions make tensors: not those put here.
    with torch.device("cpu"):
        torch.empty(0)
    for owner, name, places in (
        (torch, "empty", True),
        (torch, "empty_strided", True),
        (torch, "empty_like", False),
        (torch.Tensor, "new_empty", False),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name), places))
