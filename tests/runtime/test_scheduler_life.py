"""A scheduler that dies is started again, so often in a time; the server lives on meanwhile.

Sockets that are not read, second signals and folders of killed servers: how a server ends.
"""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from runtime.scheduler_life import RESTART_WINDOW_S, Restarts
from tests.runtime.stand_ins import DIE_AT
from tests.runtime.test_launch import Server, alive, checkpoint, server

__all__ = ["checkpoint"]


def _again(up: Server, before: int) -> int:
    """Wait until another scheduler answers; return its process id."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reply = up.client.get("/server_info")
        if up.client.get("/ready").status_code == 200 and reply.json()["pid"] != before:
            return int(reply.json()["pid"])
        time.sleep(0.05)
    raise AssertionError(up.log)


def test_a_dead_scheduler_is_started_again_and_one_that_dies_too_often_is_not(
    checkpoint: Path,
) -> None:
    with server(checkpoint, "steady", "--restart-scheduler", "1") as up:
        first = up.wait_ready()
        with up.left_waiting() as replies:
            os.kill(first, signal.SIGKILL)
        refused = up.generate(10)
        second = _again(up, first)

        assert [replies[0].status_code, refused.status_code] == [503, 503]
        assert int(refused.headers["retry-after"]) >= 1
        assert "SIGKILL" in refused.text
        assert up.generate(10).json()["output_ids"] == [11, 12, 13]
        assert not alive(first)

        assert up.generate(DIE_AT).status_code == 503
        assert up.exit_code() == 1
        assert not alive(second)
        assert "Traceback" not in up.log


def test_restarts_are_bounded_in_a_time() -> None:
    restarts = Restarts(2)

    assert [restarts.take(now_s) for now_s in (0.0, 1.0, 2.0)] == [True, True, False]
    assert [restarts.take(RESTART_WINDOW_S + s) for s in (0.0, 0.5, 1.0)] == [True, False, True]
    assert restarts.count == 4
    assert not Restarts(0).take(0.0)


def test_a_second_sigterm_ends_at_once(checkpoint: Path) -> None:
    with server(checkpoint, "steady", "--drain-timeout", "300") as up:
        scheduler = up.wait_ready()
        with up.left_waiting() as replies:
            up.process.send_signal(signal.SIGTERM)
            up.wait_log("stopping: 1 requests")
            up.process.send_signal(signal.SIGTERM)
            assert up.exit_code() == 130

        assert not alive(scheduler)
        assert replies[0].status_code == 503
        assert "Traceback" not in up.log


def test_an_unread_reply_holds_up_no_drain(checkpoint: Path) -> None:
    with server(checkpoint, "steady", "--drain-timeout", "300") as up, socket.socket() as client:
        up.wait_ready()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", httpx.URL(str(up.client.base_url)).port))
        # More than the buffers of both sockets hold.
        sampling = {"max_new_tokens": 1000, "n": 8}
        body = json.dumps({"input_ids": [[1]] * 128, "sampling_params": sampling}).encode()
        client.sendall(
            b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        begun = time.monotonic()
        up.process.send_signal(signal.SIGTERM)

        assert up.exit_code() == 0
        assert time.monotonic() - begun < 60
        assert "does not read" in up.log


@pytest.mark.slow
def test_sockets_of_a_killed_server_are_removed_by_the_next(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(root))
    (root / "umbra-other").mkdir()
    with server(checkpoint, "steady") as up:
        scheduler = up.wait_ready()
        [left] = [path for path in root.glob("umbra-*") if path.name != "umbra-other"]
        up.process.kill()
        up.exit_code()
        while alive(scheduler):
            time.sleep(0.02)
        assert left.is_dir()

    with server(checkpoint, "steady") as up:
        up.wait_ready()
        assert not left.exists()
        assert (root / "umbra-other").is_dir()
        up.process.send_signal(signal.SIGTERM)
        assert up.exit_code() == 0
    assert [path.name for path in root.iterdir()] == ["umbra-other"]
