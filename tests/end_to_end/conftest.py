"""Servers that several files ask the same of; a start costs more than most tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.pools import wait_idle
from tests.testing.otlp import Collector
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.folder import write_stand_in

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
    return _emptied(_stand_in_server)


@pytest.fixture(scope="module")
def keyed_server(_keyed_server: ServerProcess) -> ServerProcess:
    """The stand-in, served to those who have KEY, with an empty cache; logged and traced."""
    return _emptied(_keyed_server)


def _emptied(server: ServerProcess) -> ServerProcess:
    wait_idle(server)
    assert server.client.post("/flush_cache").status_code == 200
    return server
