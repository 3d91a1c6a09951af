"""A client that leaves takes its request along: at every phase, and nothing stays behind."""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import ServerProcess, generate_body, running_server

LONG = 4000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with few rows, so that some requests wait."""
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    flags = ("--full-pages", "96", "--max-running-requests", "4", "--chunked-prefill-size", "64")
    with running_server(*model, *flags) as server:
        yield server


def _wait_until_busy(server: ServerProcess, *, running: int) -> None:
    deadline = time.monotonic() + 20.0
    while read_state(server)["running"] < running:
        assert time.monotonic() < deadline, f"nothing runs:\n{server.log()}"
        time.sleep(0.02)


def test_closing_a_stream_ends_its_request(server: ServerProcess) -> None:
    stream = server.stream([0, 7, 9], max_new_tokens=LONG, ignore_eos=True)

    for _ in range(3):
        next(stream)
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]

    state = wait_idle(server)
    assert state["generation_tokens"] < LONG
    assert_all_free(server)


def test_hanging_up_on_an_unfinished_reply_ends_its_request(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=1.0, trust_env=False) as client:
        body = generate_body([0, 5], max_new_tokens=LONG, ignore_eos=True)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/generate", json=body)

    wait_idle(server)
    assert_all_free(server)


def test_clients_may_leave_while_they_wait_prefill_or_decode(server: ServerProcess) -> None:
    """Twelve on four rows with prompts of many chunks: whoever hangs up is somewhere else."""

    def leave(number: int) -> None:
        prompt = [0, *range(10, 240), *range(10, 200)][: 30 + 30 * number]
        timeout = httpx.Timeout(5.0, read=0.15 + 0.05 * number)
        with (
            httpx.Client(base_url=server.url, timeout=timeout, trust_env=False) as client,
            contextlib.suppress(httpx.ReadTimeout),
        ):
            client.post(
                "/generate", json=generate_body(prompt, max_new_tokens=LONG, ignore_eos=True)
            )
            raise AssertionError("the reply came sooner than it can")

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(leave, range(12)))

    wait_idle(server)
    assert_all_free(server)


def test_half_a_request_is_no_request(server: ServerProcess) -> None:
    before = read_state(server)["requests"]

    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as raw:
        raw.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        raw.sendall(b'Content-Length: 500\r\n\r\n{"input_ids": [0, 1')

    assert wait_idle(server)["requests"] == before
    assert server.generate([0, 3], max_new_tokens=1)["output_ids"]


def test_abort_by_id_ends_that_request_alone(server: ServerProcess) -> None:
    def ask(rid: str, new_tokens: int) -> httpx.Response:
        body = generate_body([0, 8], {"rid": rid}, max_new_tokens=new_tokens, ignore_eos=True)
        return server.post("/generate", body)

    with ThreadPoolExecutor(2) as pool:
        victim = pool.submit(ask, "alpha-1", LONG)
        other = pool.submit(ask, "alpha-10", 40)
        _wait_until_busy(server, running=1)
        time.sleep(0.2)
        assert server.post("/abort_request", {"rid": "alpha"}).status_code == 200
        assert server.post("/abort_request", {"rid": "alpha-1"}).status_code == 200
        ended, finished = victim.result(timeout=20), other.result(timeout=60)

    assert len(finished.json()["output_ids"]) == 40
    if ended.status_code == 200:
        assert ended.json()["meta_info"]["finish_reason"]["type"] == "abort"
    else:
        assert ended.json()["error"]["message"]
    wait_idle(server)
    assert_all_free(server)
