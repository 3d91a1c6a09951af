"""A server whose network is shared by ranks, as processes on the CPU: what it says, how it ends."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.serving.trace import read_trace
from tests.end_to_end.pools import assert_all_free, wait_idle
from tests.end_to_end.tiny_model import CONFIG, tiny_model_flags
from tests.testing.byte_ledger import ByteLedger
from tests.testing.network_rig import NetworkRig
from tests.testing.server_process import (
    LAUNCHER,
    ROOT,
    ServerProcess,
    running_server,
)

RANKS = ("--device", "cpu", "--tp-size", "2")
POOLS = ("--full-pages", "12", "--swa-pages", "24", "--rings", "12", "--max-running-requests", "4")
NEW, VOCAB = 8, 512
# Where the two likeliest tokens of one rank are nearer, ranks may choose the other one.
MARGIN = 1e-3


@pytest.fixture(scope="module")
def flags(tiny_model: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU, with tiny pools."""
    return (*tiny_model, *POOLS)


@pytest.fixture(scope="module")
def shared(
    flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of two ranks that checks every step, and may be profiled."""
    traces = tmp_path_factory.mktemp("traces")
    with running_server(*flags, *RANKS, "--profile-dir", str(traces)) as server:
        yield server


@pytest.fixture(scope="module")
def alone(cold_server: ServerProcess) -> ServerProcess:
    """A server of one rank."""
    return cold_server


def prompt(seed: int, length: int) -> list[int]:
    """Return random token ids, none of which ends a text."""
    draws = random.Random(seed)
    return [draws.randrange(2, VOCAB) for _ in range(length)]


def same_until_close(
    shared: ServerProcess, alone: ServerProcess, ids: list[int], margin: float = MARGIN
) -> int:
    """Compare greedy tokens; return how many were the same. A close choice ends the comparison."""
    wanted = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": -1}
    want = alone.generate(ids, wanted, max_new_tokens=NEW, ignore_eos=True)
    got = shared.generate(ids, max_new_tokens=NEW, ignore_eos=True)["output_ids"]
    tops = want["meta_info"]["output_top_logprobs"]
    for at, (mine, goal) in enumerate(zip(got, want["output_ids"], strict=True)):
        if mine != goal:
            first, second = (pair[0] for pair in tops[at][:2])
            assert first - second < margin, f"token {at}: {mine}, not {goal}"
            return at
    return len(got)


def test_two_ranks_choose_the_tokens_of_one(shared: ServerProcess, alone: ServerProcess) -> None:
    lengths = (1, 64, 127, 128, 256, 257, 500)

    same = [same_until_close(shared, alone, prompt(n, length)) for n, length in enumerate(lengths)]

    assert sum(same) > 0.8 * NEW * len(lengths)


def test_a_second_turn_computes_only_what_is_new(
    shared: ServerProcess, alone: ServerProcess
) -> None:
    first = prompt(100, 300)
    reply = shared.generate(first, max_new_tokens=NEW, ignore_eos=True)["output_ids"]
    second = [*first, *reply, *prompt(101, 20)]

    told = shared.generate(second, max_new_tokens=NEW, ignore_eos=True)

    assert told["meta_info"]["cached_tokens"] >= 256
    assert same_until_close(shared, alone, second) > 0


def test_pools_that_are_full_are_emptied_and_nothing_leaks(shared: ServerProcess) -> None:
    prompts = [prompt(200 + n, 400 + 40 * n) for n in range(12)]

    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda ids: shared.generate(ids, max_new_tokens=3), prompts))

    assert len(replies) == len(prompts)
    state = wait_idle(shared)
    assert sum(map(len, prompts)) > state["full_pages"] * 256, "nothing had to be evicted"
    assert_all_free(shared)


def test_the_server_says_what_it_is_made_of(shared: ServerProcess) -> None:
    info = shared.get("/server_info")

    assert info["tp_size"] == 2
    assert info["device"] == "cpu"


def test_the_memory_of_each_rank_is_told_everywhere(
    shared: ServerProcess, alone: ServerProcess, flags: tuple[str, ...]
) -> None:
    pools = NetworkRig(ByteLedger(), *flags).pools.tensors().values()
    [whole] = alone.get("/server_info")["rank_memory"]
    parts = shared.get("/server_info")["rank_memory"]

    assert [part["rank"] for part in parts] == [0, 1]
    for part in parts:
        assert 0 < part["weight_bytes"] < whole["weight_bytes"]
        assert part["pool_bytes"] == sum(pool.nbytes for pool in pools) > 0
    assert sum(part["weight_bytes"] for part in parts) > whole["weight_bytes"]
    assert shared.get("/cache")["rank_memory"] == parts
    told = text_string_to_metric_families(shared.client.get("/metrics").text)
    [family] = [family for family in told if family.name == "umbra:rank_memory_bytes"]
    kept = [sample for sample in family.samples if sample.labels["part"] == "weights"]
    assert {int(one.labels["rank"]): one.value for one in kept} == {
        part["rank"]: part["weight_bytes"] for part in parts
    }


def test_each_rank_writes_a_trace_of_the_same_steps(shared: ServerProcess) -> None:
    started = shared.post("/start_profile", {"activities": ["CPU"]})
    again = shared.post("/start_profile", {})
    shared.generate(prompt(300, 40), max_new_tokens=3, ignore_eos=True)
    stopped = shared.post("/stop_profile", {})
    late = shared.post("/stop_profile", {})
    without_gpu = shared.post("/start_profile", {"activities": ["GPU"]})

    assert started.status_code == stopped.status_code == 200, stopped.text
    files = stopped.json()["files"]
    assert files == started.json()["files"]
    assert [file.rpartition("-")[2] for file in files] == [
        f"rank{rank}.trace.json.gz" for rank in (0, 1)
    ]
    names = [[step.name for step in read_trace(Path(file)).steps] for file in files]
    assert names[0] == names[1]
    assert names[0][0] == "step prefill 1 rows 40 tokens"
    assert len(names[0]) >= 3
    for refused, why in ((again, "stop it first"), (late, "no profile"), (without_gpu, "no GPU")):
        assert refused.status_code == 400
        assert why in refused.text


def refused(folder: Path, *flags: str) -> str:
    """Return the lines of a server that refuses to start."""
    ended = subprocess.run(
        [sys.executable, str(LAUNCHER), "--port", "0", *flags, *RANKS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert not list(folder.glob("umbra-*"))
    return ended.stderr


def lines_of_faults(told: str) -> list[str]:
    """Return what is neither a note nor a line of progress."""
    return [line for line in told.splitlines() if line.strip() and " INFO " not in line]


@pytest.mark.slow
def test_a_network_that_ranks_cannot_share_is_refused_in_a_line(tmp_path: Path) -> None:
    """The error of the ranks: tests/runtime/executor/test_rank_group.py has it for every push."""
    flags = tiny_model_flags(tmp_path)
    changed: dict[str, Any] = {**CONFIG, "vocab_size": 511}
    (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")

    told = lines_of_faults(refused(tmp_path, *flags))

    assert len(told) == 1, told
    assert "--tp-size 2: 511 tokens of the vocabulary cannot be shared by 2 ranks" in told[0]


def test_a_checkpoint_that_does_not_exist_is_refused_in_a_line(tmp_path: Path) -> None:
    told = lines_of_faults(refused(tmp_path, "--model-path", str(tmp_path / "nowhere")))

    assert len(told) == 1, told
    assert "nowhere" in told[0]


@pytest.mark.slow
def test_weights_that_do_not_exist_are_refused_in_a_line(tmp_path: Path) -> None:
    """Only ranks read them."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    told = lines_of_faults(refused(tmp_path, "--model-path", str(tmp_path)))

    assert len(told) == 1, told
    assert "safetensors" in told[0]
