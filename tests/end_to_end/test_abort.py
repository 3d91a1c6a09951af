"""A client that leaves takes its request along: at every phase, and nothing stays behind."""

import contextlib
import itertools
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import Json, ServerProcess, generate_body, running_server

# Tokens that no server has made before a client that was held up has left.
LONG = 12_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with few rows, so that some requests wait."""
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    flags = ("--full-pages", "96", "--max-running-requests", "4", "--chunked-prefill-size", "64")
    with running_server(*model, *flags) as server:
        yield server


def test_closing_a_stream_ends_its_request(server: ServerProcess) -> None:
    before = read_state(server)["generation_tokens"]
    stream = server.stream([0, 7, 9], max_new_tokens=LONG, ignore_eos=True)

    for _ in range(3):
        next(stream)
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]

    assert wait_idle(server)["generation_tokens"] - before < LONG
    assert_all_free(server)


def test_hanging_up_on_an_unfinished_reply_ends_its_request(server: ServerProcess) -> None:
    before = read_state(server)["generation_tokens"]
    timeout = httpx.Timeout(60.0, read=1.0)
    with httpx.Client(base_url=server.url, timeout=timeout, trust_env=False) as client:
        body = generate_body([0, 5], max_new_tokens=LONG, ignore_eos=True)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/generate", json=body)

    assert wait_idle(server)["generation_tokens"] - before < LONG
    assert_all_free(server)


def test_clients_may_leave_while_they_wait_prefill_or_decode(server: ServerProcess) -> None:
    """Twelve on four rows with prompts of many chunks: whoever hangs up is somewhere else."""

    def leave(number: int) -> None:
        prompt = [0, *range(10, 240), *range(10, 200)][: 30 + 30 * number]
        timeout = httpx.Timeout(60.0, read=0.15 + 0.05 * number)
        with (
            httpx.Client(base_url=server.url, timeout=timeout, trust_env=False) as client,
            contextlib.suppress(httpx.ReadTimeout),
        ):
            client.post(
                "/generate", json=generate_body(prompt, max_new_tokens=LONG, ignore_eos=True)
            )
            raise AssertionError("the reply came sooner than it can")

    with ThreadPoolExecutor(12) as pool:
        before = read_state(server)["generation_tokens"]
        list(pool.map(leave, range(12)))

    assert wait_idle(server)["generation_tokens"] - before < LONG
    assert_all_free(server)


def test_half_a_request_is_no_request(server: ServerProcess) -> None:
    before = read_state(server)["requests"]

    with socket.create_connection(("127.0.0.1", server.port), timeout=60.0) as raw:
        raw.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        raw.sendall(b'Content-Length: 500\r\n\r\n{"input_ids": [0, 1')

    assert wait_idle(server)["requests"] == before
    assert server.generate([0, 3], max_new_tokens=1)["output_ids"]


def test_abort_by_id_ends_that_request_alone(server: ServerProcess) -> None:
    def ask(rid: str, new_tokens: int) -> Iterator[Json]:
        """Return the events of a request that runs."""
        stream = server.stream([0, 8], {"rid": rid}, max_new_tokens=new_tokens, ignore_eos=True)
        return itertools.chain([next(stream)], stream)

    victim, other = ask("alpha-1", LONG), ask("alpha-10", 150)
    assert server.post("/abort_request", {"rid": "alpha"}).status_code == 200
    assert server.post("/abort_request", {"rid": "alpha-1"}).status_code == 200
    *_, ended = victim
    *_, finished = other

    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(ended["output_ids"]) < LONG
    assert finished["meta_info"]["finish_reason"] == {"type": "length", "length": 150}
    assert len(finished["output_ids"]) == 150
    wait_idle(server)
    assert_all_free(server)
