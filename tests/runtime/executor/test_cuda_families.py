"""Families of pages, and of windows, through loader and runner of CUDA devices: no state, graphs.

On a CUDA device where there is one, else on the CPU, whose memory is made up.
"""

import json
from pathlib import Path

import numpy as np
import torch

from layers.models.contract import Model, Settings
from layers.models.gpt_oss.config import parse_config as gpt_oss_config
from layers.models.gpt_oss.model import CudaGptOss, GptOssModel
from layers.models.gqa.config import parse_config as gqa_config
from layers.models.gqa.model import CudaGqa, GqaModel
from layers.models.mla.config import parse_config as mla_config
from layers.models.mla.model import CudaSparseMla, MlaModel
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from layers.weights.loading import fill_dummy
from mem_cache.spec import PoolSizes
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import CudaLoader
from runtime.executor.device_choice import choose_settings
from runtime.wire.loaded import Loaded
from tests.testing.fused_rig import DEVICE, ROWS, a_device, cuda_runner
from tests.testing.gpt_oss_checkpoints import published_config
from tests.testing.gqa_checkpoints import VOCAB, write_config
from tests.testing.mla_checkpoints import write_published
from tests.testing.scheduler_rig import Rig

SIZES = {"head_dim": 64, "hidden_size": 128, "num_hidden_layers": 2}
WINDOWED = {
    **{**SIZES, "intermediate_size": 64, "num_attention_heads": 4, "num_local_experts": 8},
    **{"sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]},
}
PACKED = {
    **{"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "v_head_dim": 32},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 64},
    **{"q_lora_rank": 64, "first_k_dense_replace": 2, "intermediate_size": 128},
}
POOLS = PoolSizes(12, 40, 0)


class Bf16Model(GqaModel):
    """A model whose network is that of CUDA devices, wherever it is built."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> CudaGqa:
        """Return the network; see `Model`."""
        numbers = Numbers(device, Settings(dtype="bfloat16"), "any")
        return CudaGqa(self.config, numbers, ranks or OneRank())


class Bf16Windowed(GptOssModel):
    """The same of layers with a window."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> CudaGptOss:
        """Return the network; see `Model`."""
        numbers = Numbers(device, Settings(dtype="bfloat16", deterministic=True), "any")
        return CudaGptOss(self.config, numbers, ranks or OneRank())


def windowed() -> Bf16Windowed:
    """Return a model with a layer of each kind."""
    return Bf16Windowed(gpt_oss_config(published_config("wide"), {}, WINDOWED))


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
    """Return what the loader says of a model with random weights."""
    config = ServerConfig(
        max_running_requests=2,
        chunked_prefill_size=16,
        context_length=300,
        load_format="dummy",
        kv_cache_bytes=1 << 24,
    )
    loader = CudaLoader(
        config,
        model,
        settings=choose_settings(config, torch.device("cuda")),
        given=device_sizes(config, "cuda"),
        place=a_device(),
    )
    return loader.load(folder, logit_rows=8).told


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


def test_windows_have_pools_of_their_own(tmp_path: Path) -> None:
    told = loaded(windowed(), tmp_path)

    assert (told.graphs, told.cache.tree.window_pages) == (True, 2)
    # One layer of each kind has two heads of 64 channels.
    pages, swa_pages = 256 * (told.sizes.full_pages + 1), 64 * (told.sizes.swa_pages + 1)
    assert told.pool_bytes == 2 * 2 * 64 * 2 * (pages + swa_pages)
    assert told.sizes.swa_pages >= 2 * 2 * 2


def rig_of(network: CudaGptOss, *, reuse: bool, graphs: tuple[int, ...] = ()) -> Rig:
    """Return a scheduler over the network."""
    runner = cuda_runner(
        network, network.pools(POOLS), vocab=VOCAB, pages=POOLS.full_pages, graphs=graphs
    )
    cache = network.cache
    return Rig(
        POOLS,
        spec=cache.tree,
        replay=cache.replay_tokens,
        reuse=reuse,
        chunk=100,
        rows=ROWS,
        runner=runner,
        overlap=False,
    )


def test_points_forks_and_replays_change_no_token_of_windowed_rows() -> None:
    network, draw = windowed().build(DEVICE, Settings()), np.random.default_rng(4)
    fill_dummy(network, 5)
    ids: list[int] = draw.integers(2, VOCAB, size=400).tolist()
    rig, plain = rig_of(network, reuse=True, graphs=(2, 4)), rig_of(network, reuse=False)
    first = [rig.send(prompt, 4, ignore_eos=True) for prompt in (ids[:150], ids[200:211])]
    rig.run()
    # The next turn, a fork, the same again, and a fork that no point is left for.
    asked = [
        [*ids[:150], *rig.tokens(first[0]), 7],
        [*ids[:90], *ids[300:310]],
        ids[:150],
        [*ids[:140], *ids[320:326]],
    ]
    sent = [rig.send(prompt, 4, ignore_eos=True) for prompt in asked[:3]]
    rig.run()
    rig.residency.evictions.drop_points(swa_pages=rig.residency.swa.capacity)
    sent.append(rig.send(asked[3], 4, ignore_eos=True))
    rig.run()

    cold = [plain.send(prompt, 4, ignore_eos=True) for prompt in asked]
    plain.run()
    assert [rig.tokens(one) for one in sent] == [plain.tokens(one) for one in cold]
    assert [rig.cached(one) for one in (sent[0], sent[2], sent[3])] == [153, 149, 140 - 69]
    assert rig.replica.stats.counters["replayed_tokens"]
