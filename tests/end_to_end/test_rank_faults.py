"""How a server of two ranks ends when a process of it dies, stops or runs out of memory.

Clients get an error within five seconds, and nothing is left: no process, no shared memory, no
folder of sockets.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.test_ranks import POOLS, RANKS
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.end_to_end.two_clients import FINISHED, two_clients
from tests.testing.failing_ranks import FAULTS, FIRST_TOKEN
from tests.testing.processes import running, wait_gone
from tests.testing.server_process import LAUNCHER, ServerProcess, generate_body, running_server

# An error reaches clients within this time, on a machine that does nothing else; slow tests run
# on such a one. The others only say that it comes, and that all ends.
NOTICE_S = 5.0
BUSY_S = 30.0
RANK_MAIN = "runtime.executor.rank_process"
SCHEDULER_MAIN = "runtime.scheduler_process"
FAILING = ("-m", "tests.testing.failing_ranks")
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU, with tiny pools."""
    folder = tmp_path_factory.mktemp("model")
    return (*tiny_model_flags(folder), *POOLS, "--context-length", "3000", *RANKS)


@contextmanager
def traffic(
    flags: tuple[str, ...], launcher: tuple[str, ...] = (str(LAUNCHER),)
) -> Iterator[tuple[ServerProcess, ThreadPoolExecutor, list[Future[tuple[str, float]]]]]:
    """Yield a server with two clients; afterwards it has ended badly, and all of it is gone."""
    before = set(os.listdir("/dev/shm"))
    with (
        running_server(*flags, exit_code=None, check=False, launcher=launcher) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        processes = server.children()
        yield server, pool, two_clients(pool, server, 2500)
        assert server.wait_exit(30.0) != 0
        wait_gone(processes, BUSY_S)
        left = set(os.listdir("/dev/shm")) - before
        assert not [name for name in left if name.startswith(("sem.", "psm_", "torch_"))]


@pytest.fixture
def notice_s(request: pytest.FixtureRequest) -> float:
    """Time in which a client must have its error."""
    return NOTICE_S if request.node.get_closest_marker("slow") else BUSY_S


def assert_told(waiting: list[Future[tuple[str, float]]], since_s: float, limit_s: float) -> None:
    """Check that each client got an error in time."""
    for future in waiting:
        end, ended = future.result(timeout=60.0)
        assert end != FINISHED
        assert ended - since_s < limit_s, f"{end} after {ended - since_s:.1f} s"


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the sockets of this test's server lie, and of no other."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("number", "rank"),
    [
        (signal.SIGSTOP, 0),
        # Below a rank ends by itself, for every push.
        pytest.param(signal.SIGKILL, 1, marks=SLOW),
        pytest.param(signal.SIGKILL, 0, marks=SLOW),
        pytest.param(signal.SIGSTOP, 1, marks=SLOW),
    ],
)
def test_a_server_that_loses_a_rank_says_so_and_ends(
    flags: tuple[str, ...], number: signal.Signals, rank: int, sockets: Path, notice_s: float
) -> None:
    with traffic(flags) as (server, _, waiting):
        lost = time.monotonic()

        os.kill(running(RANK_MAIN, server.children())[rank], number)

        assert_told(waiting, lost, notice_s)
        server.wait_exit(30.0)
        how = "was killed by SIGKILL" if number == signal.SIGKILL else "has not been heard of"
        assert f"rank {rank} {how}" in server.log()
    assert not list(sockets.glob("umbra-*"))


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=SLOW)], ids=["killed", "stopped"]
)
def test_ranks_end_with_their_scheduler(
    flags: tuple[str, ...], number: signal.Signals, sockets: Path, notice_s: float
) -> None:
    with traffic(flags) as (server, _, waiting):
        lost = time.monotonic()

        os.kill(running(SCHEDULER_MAIN, server.children())[0], number)

        assert_told(waiting, lost, notice_s)
    assert not list(sockets.glob("umbra-*"))


@SLOW
def test_ranks_end_with_the_process_that_was_started(
    flags: tuple[str, ...], sockets: Path, notice_s: float
) -> None:
    with traffic(flags) as (server, _, waiting):
        lost = time.monotonic()

        server.send_signal(signal.SIGKILL)

        assert_told(waiting, lost, notice_s)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=SLOW)])
def test_a_rank_that_runs_out_of_memory_is_named_with_advice(
    flags: tuple[str, ...], rank: int, sockets: Path, notice_s: float
) -> None:
    with traffic(flags, FAILING) as (server, pool, waiting):
        lost = time.monotonic()
        body = generate_body([5, FIRST_TOKEN + rank, 7], max_new_tokens=4)

        refused = pool.submit(server.post, "/generate", body)

        assert_told(waiting, lost, notice_s)
        assert refused.result(timeout=60.0).status_code == 503
        server.wait_exit(30.0)
        [line] = {
            line.partition(f"rank {rank} ")[2]
            for line in server.log().splitlines()
            if f"rank {rank} exited" in line and "ERROR" in line
        }
        assert line.startswith("exited with code 1: out of memory: lower --mem-fr")
        assert line.endswith(f"{type(FAULTS[rank]).__name__}: {FAULTS[rank]}")
    assert not list(sockets.glob("umbra-*"))
