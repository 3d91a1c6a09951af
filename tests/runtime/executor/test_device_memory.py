"""What is left for pools, and what is said where nothing is; on a GPU, that it is measured."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.errors import ConfigError
from runtime.executor.device_memory import (
    ACTIVATIONS,
    GRAPHS,
    OTHERS,
    POOLS,
    WEIGHTS,
    CudaMemory,
    MemoryParts,
    MemoryUse,
)

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
USE = MemoryUse(
    total=100 * GIB,
    limit=88 * GIB,
    others=1 * GIB,
    weights=50 * GIB,
    activations=7 * GIB,
    graphs=2 * GIB,
)
ADVICE = {
    WEIGHTS: "give --experts fp4",
    ACTIVATIONS: "lower --chunked-prefill-size",
    GRAPHS: "give fewer --cuda-graph-bs",
    POOLS: "lower --kv-cache-bytes",
    OTHERS: "end the other processes",
}


def test_pools_get_what_the_limit_leaves() -> None:
    assert USE.pool_budget(None, ADVICE) == 28 * GIB


def test_a_flag_may_go_beyond_the_limit_and_not_beyond_the_device() -> None:
    assert USE.pool_budget(40 * GIB, ADVICE) == 40 * GIB
    with pytest.raises(ConfigError, match=f"--kv-cache-bytes {41 * GIB} is more than the .* lower"):
        USE.pool_budget(41 * GIB, ADVICE)


@pytest.mark.parametrize("part", ["weights", "activations", "graphs", "others"])
def test_where_nothing_is_left_the_largest_part_comes_first(part: str) -> None:
    sizes = dict.fromkeys(("weights", "activations", "graphs", "others"), 2 * GIB)
    full = dataclasses.replace(USE, **{**sizes, part: 83 * GIB})

    with pytest.raises(ConfigError) as told:
        full.pool_budget(None, ADVICE)

    text = str(told.value)
    name = {"graphs": GRAPHS}.get(part, part)
    assert f"{name} 83.00" in text
    assert "limit 88.00 of 100.00" in text
    assert "raise --mem-fraction-static" in text
    found = [text.index(advice) for key, advice in ADVICE.items() if key != POOLS]
    assert min(found) == text.index(ADVICE[name])


def test_facts_are_bytes() -> None:
    assert USE.facts() == {
        "device_memory_bytes": 100 * GIB,
        "weight_bytes": 50 * GIB,
        "activation_bytes": 7 * GIB,
        "graph_bytes": 2 * GIB,
    }
    assert "KV pools 28.00" in USE.told(28 * GIB)


# (in use before, taken so far, part without room and its size) -> largest part and what is told.
SHORTAGES: dict[str, tuple[int, dict[str, int], tuple[str, int | None], str, str]] = {
    "weights leave too little for activations": (
        1, {WEIGHTS: 75}, (ACTIVATIONS, None), WEIGHTS, "weights 75.00, activations more than",
    ),
    "activations are too large by themselves": (
        1, {WEIGHTS: 9}, (ACTIVATIONS, None), ACTIVATIONS, "activations more than the 70.00 left",
    ),
    "weights do not fit": (1, {}, (WEIGHTS, None), WEIGHTS, "weights more than the 79.00 left"),
    "another process has the memory": (
        60, {WEIGHTS: 9}, (ACTIVATIONS, None), OTHERS, "others 60.00, weights 9.00, activations",
    ),
    "graphs have no room beside pools": (
        1, {WEIGHTS: 20, POOLS: 55}, (GRAPHS, None), POOLS, "KV pools 55.00, CUDA graphs more than",
    ),
    "graphs have no room beside weights": (
        1, {WEIGHTS: 70}, (GRAPHS, None), WEIGHTS, "CUDA graphs more than the 9.00 left",
    ),
    "pools are larger than the device": (
        1, {WEIGHTS: 60}, (POOLS, 900), POOLS, "weights 60.00, KV pools 900.00; device 80.00",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORTAGES)
def test_running_out_of_memory_names_the_part_that_fills_the_device(name: str) -> None:
    others, taken, (wanted, size), largest, told = SHORTAGES[name]
    parts = MemoryParts(80 * GIB, ADVICE, others=others * GIB)
    for part, held in taken.items():
        parts.note(part, held * GIB)

    bytes_wanted = None if size is None else size * GIB
    with pytest.raises(ConfigError) as raised, parts.fitting(wanted, bytes_wanted):
        raise torch.OutOfMemoryError("CUDA out of memory")

    text = str(raised.value)
    assert f"most of it is for {largest} (" in text
    assert told in text
    # First what helps most, then what makes the part smaller that found no room.
    advice = [ADVICE[part] for part in dict.fromkeys((largest, wanted))]
    assert text.endswith(": " + ", or ".join(advice))


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_libraries_and_drivers_run_out_of_memory_too(fault: RuntimeError) -> None:
    parts = MemoryParts(80 * GIB, ADVICE, others=0)

    with pytest.raises(ConfigError, match="out of device memory"), parts.fitting(WEIGHTS):
        raise fault


def test_another_fault_stays_what_it_is() -> None:
    parts = MemoryParts(80 * GIB, ADVICE, others=0)

    with pytest.raises(RuntimeError, match="another"), parts.fitting(WEIGHTS):
        raise RuntimeError("another fault")


# In a process of its own: segments that other tests have left could hold what the run takes.
_PEAK = """
import torch

from runtime.executor.device_memory import CudaMemory

GIB = 1 << 30
memory = CudaMemory(torch.device("cuda", 0))
before = memory.used()


def run() -> None:
    for _ in range(3):
        torch.zeros(GIB, dtype=torch.uint8, device="cuda")


assert GIB <= memory.peak_of(run) < 2 * GIB
assert memory.used() - before < GIB
assert before < memory.total
"""


@pytest.mark.gpu
def test_on_the_gpu_the_peak_of_a_run_is_measured() -> None:
    subprocess.run([sys.executable, "-c", _PEAK], cwd=ROOT, check=True)


@pytest.mark.gpu
def test_on_the_gpu_too_large_an_allocation_is_told() -> None:
    total = CudaMemory(torch.device("cuda", 0)).total
    parts = MemoryParts(total, ADVICE, others=0)
    with pytest.raises(ConfigError, match="most of it is for KV pools"), parts.fitting(POOLS):
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
