"""What /server_info says of the pools, and what must be true of it."""

import time

from tests.testing.server_process import ServerProcess

SETTLE_S = 60.0


def read_state(server: ServerProcess) -> dict[str, float]:
    """Return the scheduler's counters and gauges by name."""
    return server.get("/server_info")["internal_states"][0]


def wait_idle(server: ServerProcess, timeout_s: float = SETTLE_S) -> dict[str, float]:
    """Return the state once nothing runs and nothing waits; fail with it at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = read_state(server)
        if state["running"] == state["waiting"] == 0:
            return state
        assert time.monotonic() < deadline, f"still busy after {timeout_s:g} s: {state}"
        time.sleep(0.05)


def emptied(server: ServerProcess) -> ServerProcess:
    """Wait until nothing runs, empty the cache, and return the server: for a file's fixture."""
    wait_idle(server)
    assert server.client.post("/flush_cache").status_code == 200
    return server


def assert_conserved(server: ServerProcess) -> dict[str, float]:
    """Fail unless every full page of an idle server is free or in the tree; return the state."""
    state = wait_idle(server)
    assert state["full_pages_free"] + state["tree_pages"] == state["full_pages"], state
    return state


def assert_all_free(server: ServerProcess) -> None:
    """Empty the cache of an idle server and fail unless every unit of every pool is free.

    A request whose client has left may come to the scheduler as late as this: then once more.
    """
    while True:
        before = assert_conserved(server)
        response = server.post("/flush_cache", {})
        state = wait_idle(server)
        if state["requests"] == before["requests"]:
            break
    assert response.status_code == 200, response.text
    for pool in ("full_pages", "swa_pages", "rings"):
        assert state[f"{pool}_free"] == state[pool], f"{pool} leak: {state}"
