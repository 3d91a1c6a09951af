"""A streaming and a plain client of a server that is about to end."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx

from tests.end_to_end.pools import read_state
from tests.testing.server_process import ServerProcess, events, generate_body

# How a request ends that was answered in full.
FINISHED = "length"


def two_clients(
    pool: ThreadPoolExecutor, server: ServerProcess, new_tokens: int
) -> list[Future[tuple[str, float]]]:
    """Start both, and wait until the scheduler has their requests; see `ask`."""
    waiting = [pool.submit(ask, server, new_tokens, stream=stream) for stream in (True, False)]
    deadline = time.monotonic() + 60.0
    while read_state(server)["requests"] < len(waiting):
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
    return waiting


def ask(server: ServerProcess, new_tokens: int, *, stream: bool) -> tuple[str, float]:
    """Return how a request ended, by its finish reason or its error, and when."""
    body = generate_body([0, 5, 9], {"stream": stream}, max_new_tokens=new_tokens, ignore_eos=True)
    try:
        if stream:
            with server.client.stream("POST", "/generate", json=body) as response:
                last = list(events(response))[-1]
        else:
            last = server.post("/generate", body).json()
        end = str(last["error"] if "error" in last else last["meta_info"]["finish_reason"]["type"])
    except (httpx.TransportError, AssertionError) as fault:
        end = f"cut off: {fault!r}"
    return end, time.monotonic()
