"""The products that the warm-up meets are those that were compiled ahead of it, call by call."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest
import torch

import jit_kernels.vendor_products as vendor_products
import layers.experts.quantised as fused_experts
from jit_kernels.vendor_calls import make
from layers.models.deepseek_v4.config import load_config
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import CudaLoader
from runtime.executor.device_choice import choose_settings
from tests.testing import fake_deep_gemm
from tests.testing.fused_rig import DEVICE, FakeMemory, QuantisedModel, a_device

pytestmark = [
    pytest.mark.usefixtures("dense_weights_once"),
    pytest.mark.skipif(DEVICE.type == "cuda", reason="there the ops run DeepGEMM itself"),
]
SMALL = {"max_running_requests": 9, "chunked_prefill_size": 24, "context_length": 3000}
PRODUCTS = {"fp8_gemm_nt", "bf16_gemm_nt", "fp8_einsum"}
EXPERTS = {"m_grouped_fp8_gemm_nt_contiguous"}


@pytest.fixture(scope="module")
def folder(short_folder: Path) -> Path:
    """The stand-in's checkpoint."""
    return short_folder


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        pytest.param({}, PRODUCTS | EXPERTS, id="both"),
        pytest.param({"experts": "fp4", "cuda_graph_bs": (7,)}, PRODUCTS | EXPERTS, id="fp4"),
        pytest.param({"deterministic": True, "disable_cuda_graph": True}, PRODUCTS, id="exact"),
    ],
)
def test_no_product_is_met_that_was_not_compiled_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], names: set[str]
) -> None:
    met = fake_deep_gemm.install(monkeypatch)
    monkeypatch.setattr(fused_experts, "_STREAMED_ROWS", {"fp4": 14, "fp8": 12, "both": 12})
    # Networks of other tests may not be collected yet.
    monkeypatch.setattr(vendor_products, "_NOTED", [])
    told: list[int] = []

    def ahead(rows: Sequence[int], stop: Event) -> list[str]:
        told.extend(rows)
        return []

    config = ServerConfig(**{**SMALL, "kv_cache_bytes": 1 << 24, **flags})  # pyright: ignore[reportArgumentType]
    place = dataclasses.replace(a_device(FakeMemory(1 << 34)), ahead=ahead)
    loader = CudaLoader(
        config,
        QuantisedModel(load_config(folder)),
        settings=choose_settings(config, torch.device("cuda")),
        given=device_sizes(config, "cuda"),
        place=place,
    )
    loaded = loader.load(folder, logit_rows=8)

    during = {call for call in met if call[0] in PRODUCTS | EXPERTS}
    met.clear()
    for calls in vendor_products.calls_of(told, DEVICE):
        make(calls, DEVICE)
    assert {name for name, *_ in during} == names
    assert during - set(met) == set()
    # Its weights lived until here.
    assert loaded.runner is not None
