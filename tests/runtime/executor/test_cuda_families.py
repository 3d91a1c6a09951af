"""A family of pages alone through the loader of CUDA devices: no windows, no state, graphs.

On a CUDA device where there is one, else on the CPU, whose memory is made up.
"""

import json
from pathlib import Path

import numpy as np
import torch

from layers.models.contract import Settings
from layers.models.gqa.config import parse_config
from layers.models.gqa.model import CudaGqa, GqaModel
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import CudaLoader
from runtime.executor.device_choice import choose_settings
from tests.testing.fused_rig import a_device
from tests.testing.gqa_checkpoints import write_config

SIZES = {"head_dim": 64, "hidden_size": 128, "num_hidden_layers": 2}


class Bf16Model(GqaModel):
    """A model whose network is that of CUDA devices, wherever it is built."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> CudaGqa:
        """Return the network; see `Model`."""
        numbers = Numbers(device, Settings(dtype="bfloat16"), "any")
        return CudaGqa(self.config, numbers, ranks or OneRank())


def test_it_is_measured_and_runs_its_largest_steps(tmp_path: Path) -> None:
    raw = json.loads((write_config("qwen3", tmp_path) / "config.json").read_text("utf-8"))
    config = ServerConfig(
        max_running_requests=2,
        chunked_prefill_size=16,
        context_length=300,
        load_format="dummy",
        kv_cache_bytes=1 << 24,
    )

    loaded = CudaLoader(
        config,
        Bf16Model(parse_config(raw, {}, SIZES)),
        settings=choose_settings(config, torch.device("cuda")),
        given=device_sizes(config, "cuda"),
        place=a_device(),
    ).load(tmp_path, logit_rows=8)

    told = loaded.told
    assert (told.facts["dtype"], told.facts["record_format"]) == ("bfloat16", "bf16")
    assert (told.graphs, told.in_flight, told.context_tokens) == (True, True, 300)
    # Two layers of two heads of 64 channels, keys and values, in bfloat16.
    page = told.cache.page_size * 2 * 2 * 2 * 64 * 2
    assert told.pool_bytes == page * (told.sizes.full_pages + 1)
    assert np.isclose(told.pool_bytes, 1 << 24, rtol=0.1)
    assert (told.sizes.swa_pages, told.sizes.states) == (0, 0)
