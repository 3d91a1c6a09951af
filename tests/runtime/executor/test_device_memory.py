"""What is left for pools, and what is said where nothing is; on a GPU, that it is measured."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.errors import ConfigError
from runtime.executor.device_memory import CudaMemory, MemoryUse, fitting

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


def test_pools_get_what_the_limit_leaves() -> None:
    assert USE.pool_budget(None) == 28 * GIB


def test_a_flag_may_go_beyond_the_limit_and_not_beyond_the_device() -> None:
    assert USE.pool_budget(40 * GIB) == 40 * GIB
    with pytest.raises(ConfigError, match=f"--kv-cache-bytes {41 * GIB} is more than the .* lower"):
        USE.pool_budget(41 * GIB)


def test_where_nothing_is_left_the_flags_that_help_are_named() -> None:
    full = dataclasses.replace(USE, weights=78 * GIB)

    with pytest.raises(ConfigError) as told:
        full.pool_budget(None)

    text = str(told.value)
    for part in ("weights 78.00", "activations 7.00", "CUDA graphs 2.00", "88.00 of 100.00"):
        assert part in text
    for flag in ("--mem-fraction-static", "--chunked-prefill-size", "--experts fp4"):
        assert flag in text


def test_facts_are_bytes() -> None:
    assert USE.facts() == {
        "device_memory_bytes": 100 * GIB,
        "weight_bytes": 50 * GIB,
        "activation_bytes": 7 * GIB,
        "graph_bytes": 2 * GIB,
    }
    assert "KV pools 28.00" in USE.told(28 * GIB)


def test_running_out_of_memory_is_an_error_of_the_configuration() -> None:
    told = r"the weights take more .*: a smaller model"
    with pytest.raises(ConfigError, match=told), fitting("the weights", "a smaller model"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="another"), fitting("the weights", ""):
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
    with pytest.raises(ConfigError, match="the pools take more"), fitting("the pools", "less"):
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
