"""The network in bfloat16, on a GPU if there is one: the reference's logits, and its own bits.

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
from layers.models.mla.config import parse_config
from layers.models.mla.model import CudaMla, PlainMla
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from layers.weights.loading import fill_dummy
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
from tests.testing.thread_ranks import ThreadRanks, in_ranks

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
# Widths that products on a GPU take; the rest is as small as the checkpoints are.
SIZES = {
    **{"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "v_head_dim": 32},
    **{"moe_intermediate_size": 64, "n_routed_experts": 32, "kv_lora_rank": 64},
}
# Records of the published sizes, which FlashMLA reads.
PUBLISHED = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
FAMILIES = ("v2_lite", "v3_halves") if DEVICE == CPU else ("v2_lite", "v2", "v3", "v3_halves")
WIDE = [False] if DEVICE == CPU else [False, True]
# Every layer rounds what it makes to bfloat16, weights and pages are the same on both sides.
BOUNDS = Bounds(cosine=0.999, rms=0.03, atol=torch.inf)
SEED = 3


@cache
def raw(name: str) -> dict[str, Any]:
    """Return a configuration."""
    with TemporaryDirectory() as folder:
        text = (write_published(name, Path(folder)) / "config.json").read_text("utf-8")
    return json.loads(text)


Made = CudaMla | PlainMla


def built(
    kind: type[Made],
    name: str,
    device: torch.device,
    ranks: Ranks,
    *,
    wide: bool = False,
    **settings: Any,
) -> Made:
    """Return a network with random weights; wide: records of the published sizes."""
    given = raw(name)
    rank = {} if given["q_lora_rank"] is None else {"q_lora_rank": 64}
    config = parse_config(given, {}, {**SIZES, **rank, **(PUBLISHED if wide else {})})
    made = kind(config, Numbers(device, Settings(dtype="bfloat16", **settings), name), ranks)
    if device.type == "cpu":
        fill_dummy(made, SEED)
    else:
        copy_weights(built(PlainMla, name, CPU, ranks, wide=wide), made)
    return made


@cache
def network(name: str, *, deterministic: bool = True, wide: bool = False) -> CudaMla:
    """Return the network; made once."""
    made = built(CudaMla, name, DEVICE, OneRank(), deterministic=deterministic, wide=wide)
    assert isinstance(made, CudaMla)
    return made


# The references of ops are invariant in any case.
@pytest.mark.parametrize("deterministic", [True] if DEVICE == CPU else [True, False])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_plain_numbers(name: str, wide: bool, deterministic: bool) -> None:
    prompt = words(141, VOCAB)
    plain = PageRig(built(PlainMla, name, CPU, OneRank(), wide=wide))
    want = [plain.prefill(PagedRow(prompt[:stop]), 2048) for stop in (139, 140, 141)]

    made = network(name, deterministic=deterministic, wide=wide)
    got = logits_of(made, prompt, prompt[100:120], DEVICE)

    for one, other_one in zip(got, want, strict=True):
        assert_close(one, other_one, BOUNDS)
    assert float(want[0].std()) > 0.1


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("name", ["v3"] if DEVICE == CPU else ["v2_lite", "v3"])
def test_a_token_has_the_same_bits_decoded_in_any_chunk_company_and_from_the_cache(
    name: str, wide: bool
) -> None:
    others = [words(length, VOCAB, seed=length) for length in (3, 131)]
    made = network(name, wide=wide)
    assert_bits_depend_on_the_prefix(made, words(300, VOCAB), others, DEVICE)


def test_rows_with_a_number_that_is_not_finite_are_told_and_leave_none() -> None:
    made = built(CudaMla, "v2_lite", DEVICE, OneRank(), deterministic=True)
    table = dict(made.named_weights())["model.embed_tokens.weight"]
    assert isinstance(table, Tensor)
    table[9] = torch.nan
    driven = PageRig(made, garbage=GARBAGE)

    told = driven.forwarded([(PagedRow([4, 5, 6]), 3), (PagedRow([4, 9, 3]), 3)])

    assert told.finite.tolist() == [True, False]
    assert all(bool(tensor.isfinite().all()) for tensor in driven.pools.tensors().values())


def test_ranks_give_what_one_rank_gives() -> None:
    prompt = words(40, VOCAB)

    def run(ranks: ThreadRanks) -> Tensor:
        made = built(CudaMla, "v3", CPU, ranks, deterministic=True)
        return PageRig(made, garbage=GARBAGE).prefill(PagedRow(prompt), 25)

    one = built(CudaMla, "v3", CPU, OneRank(), deterministic=True)
    alone = PageRig(one, garbage=GARBAGE).prefill(PagedRow(prompt), 25)
    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["v2_lite", "v3"])
def test_a_graph_gives_the_bits_of_plain_launches(
    name: str, wide: bool, deterministic: bool
) -> None:
    prompts = [words(length, VOCAB, seed=length) for length in (3, 131, 700)]
    made = network(name, deterministic=deterministic, wide=wide)
    assert_graphs_give_the_bits_of_launches(made, prompts, DEVICE)
