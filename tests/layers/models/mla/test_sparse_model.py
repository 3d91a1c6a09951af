"""V3.2 against transformers, and against itself: its indexer, its records, chunks and reuse."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.blocks.norm import LayerNorm
from layers.models.contract import Settings
from layers.models.json_fields import ConfigFault
from layers.models.mla.config import IndexFields, MlaConfig, parse_config
from layers.models.mla.model import MlaModel
from layers.models.registry import read_model
from layers.weights.loading import fill_dummy, load_weights
from tests.layers.models.mla.test_config import V32
from tests.layers.models.mla.test_model import CPU, SEED, dummy, loaded, words
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.gqa_checkpoints import write
from tests.testing.mla_checkpoints import reference, write_fp8, write_published
from tests.testing.page_rig import PagedRow, PageRig
from tests.testing.thread_ranks import ThreadRanks, in_ranks

SMALL = Path(__file__).parents[3] / "bench" / "network" / "v32_small"
Change = Callable[[MlaConfig], MlaConfig]


@pytest.mark.parametrize(
    ("record_format", "token_bytes"), [("bf16", 61 * 2 * (576 + 128)), ("fp8", 48_068)]
)
def test_published_sizes_make_the_published_numbers(record_format: str, token_bytes: int) -> None:
    model = MlaModel(parse_config(V32, {}, {}))

    made = model.build(
        torch.device("meta"), Settings(dtype="bfloat16", kv_cache_dtype=record_format)
    )

    shapes = [view.shape for _, view in made.named_weights()]
    # V3's, and in each layer an indexer's 14 million.
    indexer = 64 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168
    assert sum(map(math.prod, shapes)) == 671_026_419_200 + 61 * indexer
    assert made.cache.full_page_bytes == made.cache.page_size * token_bytes


def test_the_small_configuration_has_the_published_records() -> None:
    model = read_model(SMALL)

    made = model.build(torch.device("meta"), Settings(kv_cache_dtype="fp8"))

    assert made.cache.full_page_bytes == 4 * made.cache.page_size * (656 + 132)
    assert made.facts["record_format"] == "fp8"


def with_index(**fields: Any) -> Change:
    """Return what changes fields of the indexer."""

    def change(config: MlaConfig) -> MlaConfig:
        assert isinstance(config.index, IndexFields)
        return replace(config, index=replace(config.index, **fields))

    return change


class Distance:
    """How far the logits of a network lie from those of transformers."""

    def __init__(self, folder: Path) -> None:
        model, self._prompt = reference("v32"), words(150)
        self._folder = write(model, folder)
        read = read_model(folder)
        assert isinstance(read, MlaModel)
        self._config = read.config
        with torch.inference_mode():
            logits = model(torch.tensor([self._prompt]), use_cache=False).logits
        self._want = logits[0, -1]

    def __call__(
        self, change: Change | None = None, weights: Callable[[str, Tensor], None] | None = None
    ) -> float:
        """Return the greatest difference, with another configuration or other weights."""
        config = self._config if change is None else change(self._config)
        made = MlaModel(config).build(CPU, Settings())
        load_weights(made, self._folder, progress=False)
        if weights is not None:
            for name, weight in made.named_weights():
                assert isinstance(weight, Tensor) or "indexer" not in name
                if isinstance(weight, Tensor):
                    weights(name, weight)
        got = PageRig(made).prefill(PagedRow(self._prompt), 2048)
        return float((got - self._want).abs().max())


@pytest.fixture
def distance(tmp_path: Path) -> Distance:
    """Return it, with a checkpoint in a folder of its own."""
    made = Distance(tmp_path)
    # A tie that sums of another order break otherwise moves a little.
    assert made() < 5e-3
    return made


def test_the_indexer_does_not_turn_neighbouring_channels(distance: Distance) -> None:
    assert distance(with_index(interleaved=True)) > 5e-2


def test_no_more_positions_are_attended_than_the_configuration_says(distance: Distance) -> None:
    assert distance(with_index(chosen=2048)) > 5e-2
    assert distance(with_index(chosen=47)) > 5e-3


def test_the_norm_of_indexer_keys_takes_the_mean_away(
    distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_square(norm: LayerNorm, x: Tensor) -> Tensor:
        size = (x.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        return x * size * norm.weight + norm.bias

    monkeypatch.setattr(LayerNorm, "__call__", by_square)
    assert distance() > 5e-2


def test_the_norm_of_indexer_keys_adds_its_bias(distance: Distance) -> None:
    def without(name: str, weight: Tensor) -> None:
        if name.endswith("indexer.k_norm.bias"):
            weight.zero_()

    assert distance(weights=without) > 5e-2


def test_a_published_fp8_checkpoint_gives_what_its_numbers_give(tmp_path: Path) -> None:
    quantised, plain = write_fp8(reference("v32"), tmp_path)
    prompt = words(70)

    want = PageRig(loaded(plain)).prefill(PagedRow(prompt), 2048)

    assert_same_bits(PageRig(loaded(quantised)).prefill(PagedRow(prompt), 2048), want)


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_a_token_has_the_same_bits_in_any_chunk_company_and_from_the_cache(
    record_format: str, tmp_path: Path
) -> None:
    made = dummy(write_published("v32", tmp_path), kv_cache_dtype=record_format)
    rig, prompt, other = PageRig(made, pages=64), words(600), words(300)
    whole = PagedRow(prompt)
    want = rig.prefill(whole, 2048)

    for chunk in (64, 257):
        assert_same_bits(rig.prefill(PagedRow(prompt), chunk), want)
    start = prompt[:60]
    assert_same_bits(rig.prefill(PagedRow(start), 1), rig.prefill(PagedRow(start), 2048))
    for at in (1, 48, 256, 511, 599):
        assert_same_bits(rig.prefill(rig.fork(whole, prompt, at), 100), want)
    one, two = rig.fork(whole, prompt, 598), PagedRow(other)
    rig.step([(two, 299), (one, 599)])
    both = rig.step([(one, 600), (two, 300)])
    assert_same_bits(both[0], want)
    assert_same_bits(both[1], rig.prefill(PagedRow(other), 2048))


def test_ranks_choose_and_give_what_one_rank_does(tmp_path: Path) -> None:
    folder, prompt = write_published("v32", tmp_path), words(90)
    alone = PageRig(dummy(folder)).prefill(PagedRow(prompt), 2048)

    def run(ranks: ThreadRanks) -> Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        fill_dummy(made, SEED)
        return PageRig(made).prefill(PagedRow(prompt), 50)

    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, Bounds(atol=5e-3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 96}, "fp8: kv_lora_rank 96: .* multiple of 128"),
        ({"index_head_dim": 96}, "fp8 needs an index_head_dim that is a power of two, got 96"),
    ],
)
def test_widths_without_a_packed_form_are_refused(changes: dict[str, Any], message: str) -> None:
    model = MlaModel(parse_config(V32 | changes, {}, {"num_hidden_layers": 1}))

    with pytest.raises(ConfigFault, match=message):
        model.build(torch.device("meta"), Settings(kv_cache_dtype="fp8"))
