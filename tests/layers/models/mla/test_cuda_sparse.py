"""V3.2 in bfloat16 over packed pages, on a GPU if there is one: the reference's, and its own bits.

Without a GPU the references of its ops run, which shows that it is wired right.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.models.contract import Settings
from layers.models.json_fields import ConfigFault
from layers.models.mla.config import MlaConfig, parse_config
from layers.models.mla.model import CudaSparseMla, MlaModel, PlainSparseMla
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank
from layers.weights.loading import fill_dummy
from tests.layers.models.mla.test_config import V3, V32
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.cuda_decoders import (
    GARBAGE,
    assert_bits_depend_on_the_prefix,
    assert_graphs_give_the_bits_of_launches,
    copy_weights,
    logits_of,
    words,
)
from tests.testing.gqa_checkpoints import VOCAB
from tests.testing.mla_checkpoints import write_published
from tests.testing.page_rig import PagedRow, PageRig

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
# Records as published; far fewer positions than rows have. Without experts, which are V3's: where
# two are rated alike, rounding chooses another one.
SIZES = {
    **{"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "v_head_dim": 32},
    **{"first_k_dense_replace": 2, "q_lora_rank": 64, "num_attention_heads": 4},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 64},
}
# Weights are the same on both sides, and so is the form of what is cached: products are rounded to
# bfloat16 here, numbers on a border may fall to another code.
BOUNDS = Bounds(cosine=0.999, rms=0.03, atol=torch.inf)
# Where positions are rated alike, rounding chooses other ones, and single tokens move by more.
MEDIAN = 0.15
SEED = 3

Made = CudaSparseMla | PlainSparseMla


@cache
def config(**changes: Any) -> MlaConfig:
    """Return a configuration."""
    with TemporaryDirectory() as folder:
        text = (write_published("v32", Path(folder)) / "config.json").read_text("utf-8")
    return parse_config(json.loads(text), {}, {**SIZES, **changes})


def built(
    kind: type[Made], device: torch.device, *, deterministic: bool = True, **changes: Any
) -> Made:
    """Return a network with random weights."""
    settings = Settings(dtype="bfloat16", kv_cache_dtype="fp8", deterministic=deterministic)
    numbers = Numbers(device, settings, "v32", ("fp8",), on_cuda="fp8")
    made = kind(config(**changes), numbers, OneRank())
    if device.type == "cpu":
        fill_dummy(made, SEED)
    else:
        copy_weights(plain(**changes), made)
    return made


@cache
def plain(**changes: Any) -> Made:
    """Return the network in plain numbers over packed records; made once."""
    return built(PlainSparseMla, CPU, **changes)


@cache
def network(*, deterministic: bool = True, **changes: Any) -> CudaSparseMla:
    """Return the network; made once."""
    made = built(CudaSparseMla, DEVICE, deterministic=deterministic, **changes)
    assert isinstance(made, CudaSparseMla)
    return made


def logits_at(made: Made, prompt: list[int], stops: list[int]) -> Tensor:
    """Compute a row in chunks that end at these positions; return the logits of each end."""
    rig, row = PageRig(made, garbage=GARBAGE), PagedRow(prompt)
    return torch.stack([rig.step([(row, stop)])[0].cpu() for stop in stops])


# The references of ops are invariant in any case.
@pytest.mark.parametrize("deterministic", [False] if DEVICE == CPU else [True, False])
def test_logits_are_those_of_plain_numbers_over_packed_records(deterministic: bool) -> None:
    prompt, stops = words(200, VOCAB), [10, 39, 64, *range(80, 201, 12)]

    want = logits_at(plain(), prompt, stops)
    got = logits_at(network(deterministic=deterministic), prompt, stops)

    # Up to here all positions are attended.
    assert_close(got[:3], want[:3], BOUNDS)
    off = (got - want).norm(dim=1) / want.norm(dim=1)
    assert float(off.median()) < MEDIAN
    assert float(want.std()) > 0.1


def test_a_long_row_that_attends_all_positions_has_the_logits_of_plain_numbers() -> None:
    prompt = words(301, VOCAB)
    want = logits_at(plain(index_topk=2048), prompt, [299, 300, 301])

    got = logits_of(network(index_topk=2048), prompt, prompt[100:120], DEVICE)

    for one, other_one in zip(got, want, strict=True):
        assert_close(one, other_one, BOUNDS)


def test_a_token_has_the_same_bits_decoded_in_any_chunk_and_company() -> None:
    prompt, made = words(120, VOCAB), network()
    rig, row, other = PageRig(made, garbage=GARBAGE), PagedRow(prompt), PagedRow(words(70, VOCAB))
    want = rig.prefill(PagedRow(prompt), 2048)

    rig.step([(other, 68), (row, 90)])
    rig.step([(row, 119)])
    assert_same_bits(rig.decode([other, row], DEVICE)[1], want)
    assert_same_bits(rig.prefill(rig.fork(row, prompt, 100), 7), want)


@pytest.mark.gpu
@pytest.mark.parametrize("chosen", [64, 300])
def test_a_token_has_the_same_bits_across_pages_and_from_the_cache(chosen: int) -> None:
    others = [words(length, VOCAB, seed=length) for length in (3, 131)]
    made = network(index_topk=chosen)
    assert_bits_depend_on_the_prefix(made, words(300, VOCAB), others, DEVICE)


@pytest.mark.gpu
def test_decoding_goes_on_where_chunks_end() -> None:
    made, prompt = network(deterministic=False, index_topk=150), words(200, VOCAB)
    want = logits_at(made, prompt, [197, 198, 199])

    got = torch.stack(logits_of(made, prompt[:199], prompt[:50], DEVICE)).cpu()

    assert_close(got, want, Bounds(cosine=0.99, rms=0.2, atol=torch.inf))


def test_rows_with_a_number_that_is_not_finite_are_told_and_others_are_as_without_them() -> None:
    made = built(CudaSparseMla, DEVICE)
    table = dict(made.named_weights())["model.embed_tokens.weight"]
    assert isinstance(table, Tensor)
    table[9] = torch.nan
    driven, row = PageRig(made, garbage=GARBAGE), PagedRow([4, 5, 6])

    told = driven.forwarded([(row, 3), (PagedRow([4, 9, 3]), 3)])

    assert told.finite.tolist() == [True, False]
    alone = PageRig(made, garbage=GARBAGE).forwarded([(PagedRow([4, 5, 6]), 3)])
    assert_same_bits(told.logits[0], alone.logits[0])


def test_a_gpu_packs_what_it_caches_and_refuses_other_formats_by_name() -> None:
    there, few = torch.device("cuda"), {"num_hidden_layers": 2}
    model, dense = (MlaModel(parse_config(raw, {}, few)) for raw in (V32, V3))

    assert model.numbers(there, Settings(), OneRank()).records == "fp8"
    assert set(model.wheels) == {"sgl-deep-gemm", "sgl-flash-mla"}
    for made, wrong, text in (
        (model, Settings(kv_cache_dtype="bf16"), "its cache is fp8: kv_cache_dtype bf16 is for"),
        (model, Settings(dtype="float32"), "weights of model_type deepseek_v32 are bfloat16"),
        (dense, Settings(kv_cache_dtype="fp32"), "its cache is bf16: kv_cache_dtype fp32 is for"),
    ):
        with pytest.raises(ConfigFault, match=text):
            made.numbers(there, wrong, OneRank())


def test_the_network_of_a_gpu_has_pages_of_the_published_bytes() -> None:
    settings = Settings(dtype="bfloat16", kv_cache_dtype="fp8")
    numbers = Numbers(torch.device("meta"), settings, "v32", ("fp8",), on_cuda="fp8")

    made = CudaSparseMla(parse_config(V32, {}, {}), numbers, OneRank())

    assert made.cache.full_page_bytes == 256 * 48_068
    assert (made.facts["record_format"], made.cache.page_size) == ("fp8", 256)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_graph_gives_the_bits_of_plain_launches(deterministic: bool) -> None:
    prompts = [words(length, VOCAB, seed=length) for length in (3, 131, 700)]
    made = network(deterministic=deterministic)
    assert_graphs_give_the_bits_of_launches(made, prompts, DEVICE)
