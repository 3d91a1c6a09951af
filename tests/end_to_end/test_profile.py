"""A running server is traced while it decodes, and goes on serving whatever is asked of it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.serving.gaps import report
from tests.bench.serving.trace import read_trace
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import ServerProcess, running_server

PROMPT = [0, *range(10, 30)]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the server may write below; it makes it itself."""
    return tmp_path_factory.mktemp("profile") / "traces"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, traces: Path) -> Iterator[ServerProcess]:
    """A server that may be profiled; at the end a profile runs, which must not make it crash."""
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    with running_server(*model, "--full-pages", "16", "--profile-dir", str(traces)) as server:
        yield server
        assert start(server, {}).status_code == 200
        generate(server, 2)
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert "is not written" in server.log()
        assert "Fatal Python error" not in server.log()


def start(server: ServerProcess, body: dict[str, Any]) -> Any:
    return server.post("/start_profile", body)


def generate(server: ServerProcess, count: int) -> list[int]:
    return server.generate(PROMPT, max_new_tokens=count, ignore_eos=True)["output_ids"]


def appears(file: Path) -> Path:
    """Return `file` once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.02)
    return file


def test_decode_steps_are_traced_while_tokens_stay_the_same(
    server: ServerProcess, traces: Path
) -> None:
    plain = generate(server, 12)
    told = start(server, {"num_steps": 8, "activities": ["CPU", "GPU"], "output_dir": "run"})
    assert told.status_code == 200, told.text
    assert generate(server, 12) == plain

    trace = read_trace(appears(Path(told.json()["file"])))

    assert Path(told.json()["file"]).parent == traces / "run"
    phases = [step.phase for step in trace.steps]
    assert len(phases) == 8
    assert phases.count("decode") >= 6
    assert any(line.startswith("host ") for line in report(trace))


def test_a_profile_is_stopped_and_started_in_order_only(
    server: ServerProcess, traces: Path
) -> None:
    nothing = server.client.post("/stop_profile")
    first = start(server, {})
    second = start(server, {})
    generate(server, 3)
    stopped = server.client.post("/stop_profile")

    assert nothing.status_code == second.status_code == 400
    assert "no profile is running" in nothing.json()["error"]["message"]
    assert "stop it first" in second.json()["error"]["message"]
    assert stopped.json()["file"] == first.json()["file"]
    assert len(read_trace(Path(stopped.json()["file"])).steps) == 3
    assert [path for path in traces.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize("folder", ["..", "/", "run/../../elsewhere", "a\0b"])
def test_no_trace_leaves_the_folder(server: ServerProcess, traces: Path, folder: str) -> None:
    refused = start(server, {"output_dir": folder})

    assert refused.status_code == 400
    assert "output_dir" in refused.json()["error"]["message"]
    assert list(traces.parent.iterdir()) == [traces]
    assert generate(server, 2)
