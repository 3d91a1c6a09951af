"""Servers that several files ask the same of; a start costs more than most tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.pools import emptied
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.otlp import Collector
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.folder import write_stand_in
from tests.testing.stand_in.tokenizer import write_tokenizer

KEY = "secret"
FLAGS = ("--full-pages", "64", "--random-seed", "0")


@pytest.fixture(scope="session")
def _stand_in_server(narrow_stand_in: Path) -> Iterator[ServerProcess]:  # pyright: ignore[reportUnusedFunction]
    with running_server("--model-path", str(narrow_stand_in), *FLAGS) as server:
        yield server


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """What `keyed_server` sends its traces to."""
    with Collector() as made:
        yield made


@pytest.fixture(scope="session")
def _keyed_server(narrow_stand_in: Path, collector: Collector) -> Iterator[ServerProcess]:  # pyright: ignore[reportUnusedFunction]
    told = ("--log-format", "json", "--log-requests", "--otlp-traces-endpoint", collector.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # ms
        flags = ("--model-path", str(narrow_stand_in), *FLAGS, "--api-key", KEY)
        with running_server(*flags, *told) as server:
            server.client.headers["Authorization"] = f"Bearer {KEY}"
            yield server


@pytest.fixture(scope="session")
def wide_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in with experts that two ranks share by whole blocks of 128 channels."""
    folder = tmp_path_factory.mktemp("wide_stand_in")
    return write_stand_in(folder, moe_intermediate_size=256)


@pytest.fixture(scope="module")
def stand_in_server(_stand_in_server: ServerProcess) -> ServerProcess:
    """The stand-in, served, with an empty cache."""
    return emptied(_stand_in_server)


@pytest.fixture(scope="module")
def keyed_server(_keyed_server: ServerProcess) -> ServerProcess:
    """The stand-in, served to those who have KEY, with an empty cache; logged and traced."""
    return emptied(_keyed_server)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of the tiny network, without a tokenizer."""
    return tiny_model_flags(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture(scope="session")
def _cold_server(tiny_model: tuple[str, ...]) -> Iterator[ServerProcess]:  # pyright: ignore[reportUnusedFunction]
    flags = ("--full-pages", "128", "--disable-radix-cache")
    with running_server(*tiny_model, *flags, check=False) as server:
        yield server


@pytest.fixture(scope="module")
def cold_server(_cold_server: ServerProcess) -> ServerProcess:
    """The tiny network, served with room for many and without a cache."""
    return emptied(_cold_server)


@pytest.fixture(scope="session")
def worded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny network with the stand-in's tokenizer."""
    folder = tmp_path_factory.mktemp("worded_model")
    tiny_model_flags(folder)
    write_tokenizer(folder, max_tokens=16384)
    return folder


@pytest.fixture(scope="session")
def _tiny_server(worded_model: Path) -> Iterator[ServerProcess]:  # pyright: ignore[reportUnusedFunction]
    flags = (*tiny_model_flags(worded_model), "--full-pages", "200")
    with running_server(*flags, check=False) as server:
        yield server


@pytest.fixture(scope="module")
def tiny_server(_tiny_server: ServerProcess) -> ServerProcess:
    """The tiny network with the stand-in's tokenizer, served with an empty cache."""
    return emptied(_tiny_server)
