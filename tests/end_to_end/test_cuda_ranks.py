"""Servers of two GPUs: they answer as one does, and end when a process of theirs does.

`python -m pytest tests/end_to_end/test_cuda_ranks.py` on a machine with two CUDA devices. That they
reuse without a change of bits is in `test_cuda_reuse.py`.

The default model is asked, which is sure of its choices: sums in another order, rounded to fp8 in
each layer, change what a network of random weights says as much as other weights would.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.pools import assert_all_free
from tests.end_to_end.test_cuda_reuse import DEVICE, READY_S
from tests.end_to_end.test_rank_faults import NOTICE_S, RANK_MAIN, assert_told, traffic
from tests.evaluate.case import Cell, make_cases
from tests.evaluate.closeness import distance_at_fork
from tests.evaluate.server import HttpServer
from tests.testing.processes import running
from tests.testing.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.multi_gpu, pytest.mark.timeout(600)]

FLAGS = (*DEVICE, "--max-running-requests", "8", "--full-pages", "256")
SHARED = ("--tp-size", "2")
OWN_ROWS = (*SHARED, "--dp-size", "2", "--enable-dp-attention")
CELLS = [
    Cell(task, tokens, 4)
    for task in ("facts", "pairs", "needle", "overview")
    for tokens in (250, 900)
]
# In nats. Where one GPU is surer than this of a token, two choose it.
MARGIN = 0.5


@pytest.fixture(scope="module")
def alone() -> Iterator[ServerProcess]:
    """A server of one GPU, without a cache."""
    with running_server(*FLAGS, "--disable-radix-cache", ready_s=READY_S) as server:
        yield server


@pytest.mark.parametrize("world", [SHARED, OWN_ROWS], ids=["heads shared", "own rows"])
def test_two_gpus_answer_as_one_does(alone: ServerProcess, world: tuple[str, ...]) -> None:
    bodies = [case.body() for case in make_cases(CELLS, seed=11)]
    with running_server(*FLAGS, *world, ready_s=READY_S) as server:
        with (
            HttpServer(server.url, max_tokens=64) as two,
            HttpServer(alone.url, max_tokens=64) as one,
            ThreadPoolExecutor(6) as pool,
        ):
            first = list(pool.map(lambda body: two.ask(body, salt="a"), bodies))
            again = list(pool.map(lambda body: two.ask(body, salt="a"), bodies))
            wanted = list(pool.map(lambda body: one.ask(body, salt="a"), bodies))
        states = server.get("/server_info")["internal_states"]
        assert_all_free(server)

    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in first]
    assert all(answer.cached_tokens >= answer.prompt_tokens - 1 for answer in again)
    forks = [distance_at_fork(goal, told) for goal, told in zip(wanted, first, strict=True)]
    assert max((fork for fork in forks if fork is not None), default=0.0) < MARGIN, forks
    assert forks.count(None) > 0.8 * len(forks), forks
    assert all(state["computed_prompt_tokens"] > 0 for state in states)


@pytest.mark.parametrize(
    ("number", "rank", "how"),
    [
        (signal.SIGKILL, 1, "was killed by SIGKILL"),
        (signal.SIGSTOP, 0, "has not been heard of"),
    ],
    ids=["killed", "stopped"],
)
def test_a_server_that_loses_a_gpu_says_so_and_ends(
    number: signal.Signals, rank: int, how: str
) -> None:
    with traffic((*FLAGS, *SHARED)) as (server, _, waiting):
        lost = time.monotonic()

        os.kill(running(RANK_MAIN, server.children())[rank], number)

        assert_told(waiting, lost, NOTICE_S)
        server.wait_exit(30.0)
        assert f"rank {rank} {how}" in server.log()
