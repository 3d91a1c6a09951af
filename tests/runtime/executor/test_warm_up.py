"""What the warm-up meets is what was compiled ahead of it, call by call."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest
import torch

import layers.experts.quantised as fused_experts
from jit_kernels.vendor_calls import VendorCalls, make
from layers.models.deepseek_v4.config import load_config, pool_spec
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import CudaLoader
from tests.testing import fake_deep_gemm
from tests.testing.fused_rig import DEVICE, FakeMemory, a_device, short_stand_in

pytestmark = [
    pytest.mark.usefixtures("dense_weights_once"),
    pytest.mark.skipif(DEVICE.type == "cuda", reason="there the ops run DeepGEMM itself"),
]
SMALL = {"max_running_requests": 9, "chunked_prefill_size": 24, "context_length": 3000}
PRODUCTS = {"fp8_gemm_nt", "bf16_gemm_nt", "fp8_einsum"}
SCORES = {"fp8_paged_mqa_logits", "get_paged_mqa_logits_metadata"}


@pytest.fixture(scope="module")
def folder(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in's checkpoint."""
    return short_stand_in(stand_in, tmp_path_factory.mktemp("short"))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        pytest.param({}, {*SCORES, "m_grouped_fp8_gemm_nt_contiguous"}, id="both"),
        pytest.param(
            {"experts": "fp4", "cuda_graph_bs": (7,)},
            {*SCORES, "m_grouped_fp8_gemm_nt_contiguous"},
            id="fp4",
        ),
        pytest.param({"deterministic": True, "disable_cuda_graph": True}, SCORES, id="exact"),
    ],
)
def test_no_kernel_is_met_that_was_not_compiled_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], names: set[str]
) -> None:
    met = fake_deep_gemm.install(monkeypatch)
    monkeypatch.setattr(fused_experts, "_STREAMED_ROWS", {"fp4": 14, "fp8": 12, "both": 12})
    told: list[VendorCalls] = []

    def ahead(
        calls: Sequence[VendorCalls], *, stop: Event, tell: Callable[[str], None]
    ) -> list[str]:
        told.extend(calls)
        return []

    config = ServerConfig(**{**SMALL, "kv_cache_bytes": 1 << 24, **flags})  # pyright: ignore[reportArgumentType]
    model = load_config(folder)
    place = dataclasses.replace(a_device(FakeMemory(1 << 34)), ahead=ahead)
    given = device_sizes(config, "cuda")
    spec = pool_spec(model, "fp8")
    CudaLoader(config, model, spec=spec, given=given, place=place).load(folder, logit_rows=8)

    during = set(met)
    met.clear()
    for calls in told:
        make(calls, torch.device("cpu"))
    assert {name for name, *_ in during} == PRODUCTS | names | (
        set() if flags.get("deterministic") else {"fp8_mqa_logits"}
    )
    assert during - set(met) == set()
