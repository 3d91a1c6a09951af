"""A whole server on a GPU: graphs and overlap change no token, facts tell what runs, memory fits.

`python -m pytest tests/end_to_end/test_cuda_server.py` on a machine with a CUDA device.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.testing.server_process import LAUNCHER, ROOT, ServerProcess, running_server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PLAIN = ("--disable-cuda-graph", "--disable-overlap-schedule")
READY_S = 300.0


def flags(folder: Path) -> tuple[str, ...]:
    return (
        *("--model-path", str(folder), "--device", "cuda", "--mem-fraction-static", "0.3"),
        *("--max-running-requests", "8", "--chunked-prefill-size", "512", "--deterministic"),
        *("--context-length", "4096"),
    )


def prompt(length: int, seed: int) -> list[int]:
    return [0, *((31 * seed + 7 * i) % 500 + 2 for i in range(length - 1))]


def answers(server: ServerProcess) -> list[list[int]]:
    """Return the tokens of many requests at once, then of next turns of some of them."""

    def ask(ids: list[int]) -> list[int]:
        return server.generate(ids, max_new_tokens=24, ignore_eos=True)["output_ids"]

    first = [prompt(40 * k + 3, k) for k in range(12)]
    with ThreadPoolExecutor(len(first)) as pool:
        told = list(pool.map(ask, first))
        again = [[*ids, *said, 5, 6] for ids, said in zip(first[:4], told, strict=False)]
        return told + list(pool.map(ask, again))


def test_graphs_and_overlap_change_no_token(stand_in: Path) -> None:
    with running_server(*flags(stand_in), ready_s=READY_S) as server:
        fast, info = answers(server), server.get("/server_info")
        metrics = server.client.get("/metrics").text
    with running_server(*flags(stand_in), *PLAIN, ready_s=READY_S) as server:
        plain, slow_info = answers(server), server.get("/server_info")

    assert fast == plain
    assert (info["device"], info["dtype"], info["record_format"]) == ("cuda", "bfloat16", "fp8")
    assert (info["cuda_graph"], info["overlap"]) == (True, True)
    assert (slow_info["cuda_graph"], slow_info["overlap"]) == (False, False)
    assert info["max_running_requests"] == 8
    for name in ("device_name", "backends", "weight_bytes", "activation_bytes", "graph_bytes"):
        assert info[name], name
    assert slow_info["graph_bytes"] == 0
    told = [line for line in metrics.splitlines() if line.startswith("sglang:is_cuda_graph")]
    assert [line.split()[-1] for line in told] == ["1.0"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--kv-cache-bytes", str(1 << 42)), "lower it"),
        (("--mem-fraction-static", "0.001"), "raise --mem-fraction-static"),
        (("--dtype", "float32"), "--device cpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_is_told_before_serving(
    stand_in: Path, more: tuple[str, ...], words: str
) -> None:
    command = [sys.executable, str(LAUNCHER), *flags(stand_in), *more]

    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=READY_S, check=False
    )

    assert ended.returncode == 2
    assert words in ended.stderr
