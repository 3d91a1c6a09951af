"""Kernels that begin early wait for those before them first of all."""

import importlib.util
import os
import re
from functools import partial
from types import ModuleType

import pytest
import torch

from tests.jit_kernels.test_hopper_code import empty

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing compiles", allow_module_level=True)

from jit_kernels.device_order import early
from jit_kernels.expert_blocks import triton_backend as expert_blocks
from jit_kernels.hyper_connection import triton_post
from jit_kernels.latent_heads import LatentWeights
from jit_kernels.latent_heads import triton_backend as latent_heads
from jit_kernels.quant_fp8 import triton_backend as quant_fp8
from jit_kernels.streamed_moe import triton_backend as streamed_moe
from jit_kernels.triton_launch import PreparedKernel
from tests.testing.hopper_code import Launch, launches

MODULES = (expert_blocks, quant_fp8, streamed_moe, triton_post)
ASKS = re.compile(r"griddepcontrol\.\w+|(?:ld|st|atom|red)\.global|cp\.async")
IN_TURN = ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]


def launched(modules: tuple[ModuleType, ...], monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return the kernels that a decode step launches early."""
    monkeypatch.setattr(PreparedKernel, "__getitem__", lambda self, grid: self.kernel[grid])
    for module in modules:
        monkeypatch.setattr(module, "early", lambda: {"EARLY": True, "launch_pdl": True})
    x, numbers = empty(1, 4096), (empty(6, dtype=torch.int32), empty(1, 6, dtype=torch.float32))
    with launches() as found:
        quant_fp8.quantise_rows(x)
        quant_fp8.silu_mul_quant(x, 10.0)
        triton_post.mhc_post(x, empty(1, 4, 4096), empty(1, 5, 4, dtype=torch.float32))
        expert_blocks.expert_blocks(empty(1, 6, dtype=torch.int64), 256, 8)
        outputs = empty(6, 4096, dtype=torch.float32)
        streamed_moe.weighted_sum(outputs, *numbers, x, torch.bfloat16, in_order=False)
    return found


def test_nothing_is_read_or_written_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = launched(MODULES, monkeypatch)

    assert len(kernels) == 5
    for kernel in kernels:
        asked = ASKS.findall(kernel.code)
        assert asked[:2] == IN_TURN, kernel.name
        assert len(asked) > 2, kernel.name


@pytest.mark.slow
def test_before_a_kernel_that_waits_for_none_a_launch_lets_none_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PreparedKernel, "__getitem__", lambda self, grid: self.kernel[grid])
    monkeypatch.setattr(latent_heads, "early", lambda: {"EARLY": True, "launch_pdl": True})
    numbers = partial(empty, dtype=torch.float32)
    weights = LatentWeights(empty(2, 16, 32), numbers(32), 1e-6)
    with launches() as found:
        latent_heads.absorbed_heads(
            *(numbers(3, 2, 24), numbers(3, 40), weights, numbers(3, 2, 8), empty(2, 64, 40)),
            *(empty(3, dtype=torch.int64), False, False),
        )

    (kernel,) = found
    asked = ASKS.findall(kernel.code)
    assert asked[0] == "griddepcontrol.wait"
    assert "griddepcontrol.launch_dependents" not in asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_no_launch_is_early() -> None:
    assert early() == {"EARLY": False}
