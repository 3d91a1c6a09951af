"""Families of pages alone through the loader of CUDA devices: no windows, no state, graphs.

On a CUDA device where there is one, else on the CPU, whose memory is made up.
"""

import json
from pathlib import Path

import numpy as np
import torch

from layers.models.contract import Model, Settings
from layers.models.gqa.config import parse_config as gqa_config
from layers.models.gqa.model import CudaGqa, GqaModel
from layers.models.mla.config import parse_config as mla_config
from layers.models.mla.model import CudaSparseMla, MlaModel
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import CudaLoader
from runtime.executor.device_choice import choose_settings
from runtime.wire.loaded import Loaded
from tests.testing.fused_rig import a_device
from tests.testing.gqa_checkpoints import write_config
from tests.testing.mla_checkpoints import write_published

SIZES = {"head_dim": 64, "hidden_size": 128, "num_hidden_layers": 2}
PACKED = {
    **{"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "v_head_dim": 32},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 64},
    **{"q_lora_rank": 64, "first_k_dense_replace": 2, "intermediate_size": 128},
}


class Bf16Model(GqaModel):
    """A model whose network is that of CUDA devices, wherever it is built."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> CudaGqa:
        """Return the network; see `Model`."""
        numbers = Numbers(device, Settings(dtype="bfloat16"), "any")
        return CudaGqa(self.config, numbers, ranks or OneRank())


class PackedModel(MlaModel):
    """A model with an indexer whose network is that of CUDA devices, wherever it is built."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> CudaSparseMla:
        """Return the network; see `Model`."""
        packed = Settings(dtype="bfloat16", kv_cache_dtype="fp8")
        numbers = Numbers(device, packed, "any", self.formats, on_cuda=self.cuda_format)
        return CudaSparseMla(self.config, numbers, ranks or OneRank())


def loaded(model: Model, folder: Path) -> Loaded:
    """Load a model with random weights, and return what is told of it."""
    config = ServerConfig(
        max_running_requests=2,
        chunked_prefill_size=16,
        context_length=300,
        load_format="dummy",
        kv_cache_bytes=1 << 24,
    )

    return (
        CudaLoader(
            config,
            model,
            settings=choose_settings(config, torch.device("cuda")),
            given=device_sizes(config, "cuda"),
            place=a_device(),
        )
        .load(folder, logit_rows=8)
        .told
    )


def test_it_is_measured_and_runs_its_largest_steps(tmp_path: Path) -> None:
    raw = json.loads((write_config("qwen3", tmp_path) / "config.json").read_text("utf-8"))

    told = loaded(Bf16Model(gqa_config(raw, {}, SIZES)), tmp_path)

    assert (told.facts["dtype"], told.facts["record_format"]) == ("bfloat16", "bf16")
    assert (told.graphs, told.in_flight, told.context_tokens) == (True, True, 300)
    # Two layers of two heads of 64 channels, keys and values, in bfloat16.
    assert_pools(told, told.cache.page_size * 2 * 2 * 2 * 64 * 2)


def test_packed_pages_and_choices_are_measured_too(tmp_path: Path) -> None:
    raw = json.loads((write_published("v32", tmp_path) / "config.json").read_text("utf-8"))

    told = loaded(PackedModel(mla_config(raw, {}, PACKED)), tmp_path)

    assert (told.facts["dtype"], told.facts["record_format"]) == ("bfloat16", "fp8")
    assert (told.graphs, told.in_flight, told.context_tokens) == (True, True, 300)
    assert_pools(told, told.cache.page_size * 2 * (656 + 132))


def assert_pools(told: Loaded, page: int) -> None:
    """Hold pools to the bytes that were given, in pages of so many."""
    assert told.pool_bytes == page * (told.sizes.full_pages + 1)
    assert np.isclose(told.pool_bytes, 1 << 24, rtol=0.1)
    assert (told.sizes.swa_pages, told.sizes.states) == (0, 0)
