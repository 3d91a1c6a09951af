"""How a server ends: a drain on SIGTERM, and aloud when one of its processes dies or hangs.

Whoever waits for a reply when the scheduler dies gets an error, not silence. An
idle server ends with code 0 on SIGTERM and on SIGINT: the servers of the other files show it.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.end_to_end.tiny_model import tiny_model_flags
from tests.end_to_end.two_clients import FINISHED, two_clients
from tests.testing.server_process import ServerProcess, running_server

# Five seconds are promised; without a word from the server nobody would ever hear anything.
NOTICE_S = 60.0


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return (*tiny_model_flags(tmp_path_factory.mktemp("model")), "--full-pages", "64")


def _scheduler(server: ServerProcess) -> int:
    """Return the process that computes: of the descendants, the one with the most memory."""

    def resident_pages(pid: int) -> int:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1])

    return max(server.children(), key=resident_pages)


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, "--drain-timeout", "200", check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = two_clients(pool, server, 200)

        server.send_signal(signal.SIGTERM)

        assert [future.result(timeout=200)[0] for future in waiting] == [FINISHED, FINISHED]
        assert server.wait_exit() == 0
        with pytest.raises(httpx.TransportError):
            server.client.get("/health", timeout=2.0)


# tests/runtime/test_launch.py has what is slow here with a scheduler that is quick to start.
@pytest.mark.slow
def test_a_drain_that_takes_too_long_is_cut_short(flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, "--drain-timeout", "1", check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = two_clients(pool, server, 12_000)

        server.send_signal(signal.SIGTERM)

        assert all(future.result(timeout=60)[0] != FINISHED for future in waiting)
        assert server.wait_exit() == 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_clients_hear_of_a_dead_scheduler(number: signal.Signals, flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, exit_code=None, check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = two_clients(pool, server, 12_000)

        os.kill(_scheduler(server), number)

        ended = time.monotonic() + NOTICE_S
        for future in waiting:
            end, _ = future.result(timeout=max(ended - time.monotonic(), 0.0))
            assert end != FINISHED
        assert server.wait_exit() != 0


@pytest.mark.slow
def test_nothing_survives_the_process_that_was_started(flags: tuple[str, ...]) -> None:
    with running_server(*flags, exit_code=None, check=False) as server:
        children = server.children()
        assert children

        server.send_signal(signal.SIGKILL)
        server.wait_exit()

        deadline = time.monotonic() + 60.0
        while any(os.path.exists(f"/proc/{pid}") for pid in children):
            assert time.monotonic() < deadline, "a child outlived its parent"
            time.sleep(0.1)
