"""The families against transformers, and a network against itself: chunks, reuse, ranks."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layers.models.contract import Network, Settings
from layers.models.json_fields import ConfigFault
from layers.models.mla.config import ExpertFields, MlaConfig, parse_config
from layers.models.mla.model import MlaModel
from layers.models.registry import read_model
from layers.parallel.shares import UnevenShares
from layers.weights.loading import fill_dummy, load_weights
from tests.layers.models.mla.test_config import LITE, V2, V3
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy, write
from tests.testing.mla_checkpoints import CHECKPOINTS, reference, write_fp8, write_published
from tests.testing.page_rig import PagedRow, PageRig, assert_same_bits_anywhere
from tests.testing.thread_ranks import ThreadRanks, in_ranks

SEED = 3
CPU = torch.device("cpu")


def words(count: int) -> list[int]:
    """Return random token ids."""
    return [random.randrange(2, VOCAB) for _ in range(count)]


def loaded(folder: Path, **settings: Any) -> Network:
    """Return the network of a checkpoint."""
    made = read_model(folder).build(CPU, Settings(**settings))
    load_weights(made, folder, progress=False)
    return made


def dummy(folder: Path, **settings: Any) -> Network:
    """Return the network of a folder with random weights."""
    made = read_model(folder).build(CPU, Settings(**settings))
    fill_dummy(made, SEED)
    return made


@pytest.mark.parametrize(
    ("raw", "weights", "numbers", "token_bytes"),
    # The published counts of parameters are 671, 236 and 15.7 billion.
    [
        (V3, 45_395, 671_026_419_200, 70_272),
        (V2, 29_102, 236_016_686_080, 69_120),
        (LITE, 5_291, 15_706_484_224, 31_104),
    ],
    ids=["v3", "v2", "v2_lite"],
)
def test_published_sizes_make_the_published_number_of_parameters(
    raw: dict[str, Any], weights: int, numbers: int, token_bytes: int
) -> None:
    model = MlaModel(parse_config(raw, {}, {}))

    made = model.build(torch.device("meta"), Settings(dtype="bfloat16"))

    shapes = [view.shape for _, view in made.named_weights()]
    assert (len(shapes), sum(map(math.prod, shapes))) == (weights, numbers)
    assert made.cache.full_page_bytes == made.cache.page_size * token_bytes


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tokens_of_each_family_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name)
    rig = PageRig(loaded(write(model, tmp_path)))

    for length, chunk in ((1, 1), (300, 64), (531, 1024)):
        prompt = words(length)
        assert_greedy(model, prompt, rig.greedy(prompt, 8, chunk=chunk))


def without_mscale(config: MlaConfig) -> MlaConfig:
    """Return it with the scale of logits that plain rope has."""
    return replace(config, rope=replace(config.rope, logit_factor=1.0))


def without_factor_of_cosines(config: MlaConfig) -> MlaConfig:
    """Return it with cosines and sines as they are."""
    return replace(config, rope=replace(config.rope, attention_factor=1.0))


def turned_in_halves(config: MlaConfig) -> MlaConfig:
    """Return it with the other convention of rope."""
    return replace(config, interleaved=not config.interleaved)


def with_experts(**fields: Any) -> Callable[[MlaConfig], MlaConfig]:
    """Return what changes fields of the experts."""

    def change(config: MlaConfig) -> MlaConfig:
        assert isinstance(config.experts, ExpertFields)
        return replace(config, experts=replace(config.experts, **fields))

    return change


def unchanged(config: MlaConfig) -> MlaConfig:
    """Return it as it is."""
    return config


@pytest.mark.parametrize(
    ("name", "traps"),
    [
        ("v2_lite", {"mscale": without_mscale, "scale": with_experts(scale=2.0)}),
        (
            "v2",
            {
                "mscale": without_mscale,
                "cosines": without_factor_of_cosines,
                "groups": with_experts(groups=1, kept=1),
                "factor": with_experts(scale=1.0),
                "normalised": with_experts(normalised=True),
            },
        ),
        (
            "v3",
            {
                "mscale": without_mscale,
                "halves": turned_in_halves,
                "groups": with_experts(groups=1, kept=1),
                "normalised": with_experts(normalised=False),
                "factor": with_experts(scale=1.0),
            },
        ),
        ("v3_halves", {"pairs": turned_in_halves}),
    ],
)
def test_each_mechanism_shows_in_the_logits(
    name: str, traps: dict[str, Callable[[MlaConfig], MlaConfig]], tmp_path: Path
) -> None:
    model, prompt = reference(name), words(200)
    folder = write(model, tmp_path)
    read = read_model(folder)
    assert isinstance(read, MlaModel)
    with torch.inference_mode():
        want = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]

    def distance(change: Callable[[MlaConfig], MlaConfig]) -> float:
        made = MlaModel(change(read.config)).build(CPU, Settings())
        load_weights(made, folder, progress=False)
        got = PageRig(made).prefill(PagedRow(prompt), 2048)
        return float((got - want).abs().max())

    assert distance(unchanged) < 2e-4
    for trap, change in traps.items():
        assert distance(change) > 2e-2, f"without {trap} nothing changes"


def test_the_correction_bias_chooses_and_does_not_weigh(tmp_path: Path) -> None:
    model, prompt = reference("v3"), words(50)
    made = loaded(write(model, tmp_path))
    before = PageRig(made).prefill(PagedRow(prompt), 2048)
    biases = [w for name, w in made.named_weights() if name.endswith("correction_bias")]

    for bias in biases:
        assert isinstance(bias, torch.Tensor)
        bias += 3.0
    assert_close(PageRig(made).prefill(PagedRow(prompt), 2048), before, Bounds(atol=1e-4))
    for bias in biases:
        assert isinstance(bias, torch.Tensor)
        bias.zero_()
    changed = PageRig(made).prefill(PagedRow(prompt), 2048)
    assert float((changed - before).abs().max()) > 2e-2


def test_a_published_fp8_checkpoint_gives_what_its_numbers_give(tmp_path: Path) -> None:
    quantised, plain = write_fp8(reference("v3"), tmp_path)
    prompt = words(70)

    want = PageRig(loaded(plain)).prefill(PagedRow(prompt), 2048)

    assert_same_bits(PageRig(loaded(quantised)).prefill(PagedRow(prompt), 2048), want)


def test_layers_behind_the_last_one_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, prompt = reference("v3"), words(40)
    quantised, plain = write_fp8(model, tmp_path)

    cut = read_model(quantised, "num_hidden_layers=2").build(CPU, Settings())
    load_weights(cut, quantised, progress=False)
    both = read_model(plain, "num_hidden_layers=2").build(CPU, Settings())
    load_weights(both, plain, progress=False)

    assert_same_bits(*(PageRig(made).prefill(PagedRow(prompt), 64) for made in (cut, both)))
    # The draft layer, number 3, is not one of them.
    assert "layers up to 2, the network has those up to 1" in caplog.text


@pytest.mark.parametrize(("name", "dtype"), [("v3", "float32"), ("v2_lite", "bfloat16")])
def test_a_token_has_the_same_bits_in_any_chunk_company_and_from_the_cache(
    name: str, dtype: str, tmp_path: Path
) -> None:
    made = dummy(write_published(name, tmp_path), dtype=dtype)
    assert_same_bits_anywhere(made, words(600), words(300))


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    folder, prompt = write_published("v2_lite", tmp_path), words(100)

    exact, rounded = (
        PageRig(dummy(folder, dtype=dtype)).prefill(PagedRow(prompt), 2048).softmax(0)
        for dtype in ("float32", "bfloat16")
    )

    assert float((exact - rounded).abs().sum()) < 0.2
    info = dummy(folder, dtype="bfloat16")
    assert (info.facts["dtype"], info.facts["record_format"]) == ("bfloat16", "bf16")
    # A record of 40 + 16 channels a token and layer.
    assert info.cache.full_page_bytes == 3 * info.cache.page_size * 56 * 2


def test_ranks_give_what_one_rank_gives(tmp_path: Path) -> None:
    folder, prompt = write_published("v3", tmp_path), words(90)
    alone = PageRig(dummy(folder)).prefill(PagedRow(prompt), 2048)

    def run(ranks: ThreadRanks) -> torch.Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        fill_dummy(made, SEED)
        return PageRig(made).prefill(PagedRow(prompt), 50)

    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, Bounds(atol=1e-4))
    with pytest.raises(UnevenShares, match="6 heads"):
        in_ranks(4, run)


def test_what_does_not_suit_it_is_refused(tmp_path: Path) -> None:
    model = read_model(write_published("v3", tmp_path))

    with pytest.raises(ConfigFault, match="kv_cache_dtype fp8 is not for model_type deepseek_v3"):
        model.build(CPU, Settings(kv_cache_dtype="fp8"))
    with pytest.raises(ConfigFault, match="and on a GPU it must be a multiple of 64"):
        read_model(write_published("v3", tmp_path), "kv_lora_rank=64,q_lora_rank=64").check_cuda()
