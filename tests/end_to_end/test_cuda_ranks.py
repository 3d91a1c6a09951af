"""Servers of two GPUs: they choose the tokens of one, and end when a process of theirs does.

`python -m pytest tests/end_to_end/test_cuda_ranks.py` on a machine with two CUDA devices. That they
reuse without a change of bits is in `test_cuda_reuse.py`.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.pools import assert_all_free
from tests.end_to_end.test_cuda_reuse import DEVICE, READY_S, TINY
from tests.end_to_end.test_rank_faults import RANK_MAIN, assert_told, traffic
from tests.end_to_end.test_ranks import NEW, prompt, same_until_close
from tests.testing.processes import running
from tests.testing.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.multi_gpu, pytest.mark.timeout(600)]

SHARED = ("--tp-size", "2")
OWN_ROWS = (*SHARED, "--dp-size", "2", "--enable-dp-attention")
LENGTHS = (1, 5, 64, 127, 128, 129, 200, 255, 256, 257, 300, 500, 700)
# What sums in another order move logits by, where activations are fp8 and bfloat16.
MARGIN = 0.05


@pytest.fixture(scope="module")
def flags(wide_stand_in: Path) -> tuple[str, ...]:
    """Flags of all servers here."""
    return ("--model-path", str(wide_stand_in), *DEVICE, "--context-length", "4096", *TINY)


@pytest.fixture(scope="module")
def alone(flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    """A server of one GPU."""
    with running_server(*flags, "--disable-radix-cache", ready_s=READY_S) as server:
        yield server


@pytest.mark.parametrize("world", [SHARED, OWN_ROWS], ids=["heads shared", "own rows"])
def test_two_gpus_choose_the_tokens_of_one(
    flags: tuple[str, ...], alone: ServerProcess, world: tuple[str, ...]
) -> None:
    prompts = [prompt(n, length) for n, length in enumerate(LENGTHS)]
    with running_server(*flags, *world, ready_s=READY_S) as server:
        first = server.generate(prompts[-1], max_new_tokens=NEW, ignore_eos=True)["output_ids"]
        prompts.append([*prompts[-1], *first, *prompt(101, 20)])

        with ThreadPoolExecutor(6) as pool:
            same = list(
                pool.map(lambda ids: same_until_close(server, alone, ids, margin=MARGIN), prompts)
            )

        second = server.generate(prompts[-1], max_new_tokens=1)
        states = server.get("/server_info")["internal_states"]
        assert second["meta_info"]["cached_tokens"] == len(prompts[-1]) - 1
        assert_all_free(server)
    assert sum(same) > 0.5 * NEW * len(prompts)
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
    flags: tuple[str, ...], number: signal.Signals, rank: int, how: str
) -> None:
    with traffic((*flags, *SHARED)) as (server, _, waiting):
        lost = time.monotonic()

        os.kill(running(RANK_MAIN, server.children())[rank], number)

        assert_told(waiting, lost)
        server.wait_exit(30.0)
        assert f"rank {rank} {how}" in server.log()
