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
from layers.models.gqa.config import parse_config
from layers.models.gqa.model import CudaGqa, PlainGqa
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
from tests.testing.gqa_checkpoints import VOCAB, write_config
from tests.testing.page_rig import PagedRow, PageRig
from tests.testing.thread_ranks import ThreadRanks, in_ranks

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
# Heads of 64 channels, which kernels take; the rest is as small as the checkpoints are.
SIZES = {
    **{"head_dim": 64, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2},
    **{"moe_intermediate_size": 64, "num_experts": 64},
}
FAMILIES = ("llama", "llama_biased", "qwen2", "qwen3", "qwen3_moe")
# Every layer rounds what it makes to bfloat16, weights and pages are the same on both sides.
BOUNDS = Bounds(cosine=0.999, rms=0.05, atol=torch.inf)
SEED = 3


@cache
def raw(name: str) -> dict[str, Any]:
    """Return a configuration."""
    with TemporaryDirectory() as folder:
        text = (write_config(name, Path(folder)) / "config.json").read_text("utf-8")
    return json.loads(text)


Made = CudaGqa | PlainGqa


def built(kind: type[Made], name: str, device: torch.device, ranks: Ranks, **settings: Any) -> Made:
    """Return a network with random weights."""
    config = parse_config(raw(name), {}, SIZES)
    numbers = Numbers(device, Settings(dtype="bfloat16", **settings), name)
    made = kind(config, numbers, ranks)
    if device.type == "cpu":
        fill_dummy(made, SEED)
        return made
    copy_weights(built(PlainGqa, name, CPU, ranks), made)
    return made


@cache
def network(name: str, *, deterministic: bool = True) -> CudaGqa:
    """Return the network; made once."""
    made = built(CudaGqa, name, DEVICE, OneRank(), deterministic=deterministic)
    assert isinstance(made, CudaGqa)
    return made


# The references of ops are invariant in any case.
@pytest.mark.parametrize("deterministic", [True] if DEVICE == CPU else [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_plain_numbers(name: str, deterministic: bool) -> None:
    prompt = words(281, VOCAB)
    plain = PageRig(built(PlainGqa, name, CPU, OneRank()))
    want = [plain.prefill(PagedRow(prompt[:stop]), 2048) for stop in (279, 280, 281)]

    made = network(name, deterministic=deterministic)
    got = logits_of(made, prompt, prompt[100:140], DEVICE)

    for one, other_one in zip(got, want, strict=True):
        assert_close(one, other_one, BOUNDS)
    assert float(want[0].std()) > 0.1


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_token_has_the_same_bits_decoded_in_any_chunk_company_and_from_the_cache(
    name: str,
) -> None:
    others = [words(length, VOCAB, seed=length) for length in (3, 131, 290)]
    assert_bits_depend_on_the_prefix(network(name), words(300, VOCAB), others, DEVICE)


def test_rows_with_a_number_that_is_not_finite_are_told_and_leave_none() -> None:
    made = built(CudaGqa, "llama", DEVICE, OneRank(), deterministic=True)
    assert isinstance(made, CudaGqa)
    table = dict(made.named_weights())["model.embed_tokens.weight"]
    assert isinstance(table, Tensor)
    table[9] = torch.nan
    driven = PageRig(made, garbage=GARBAGE)

    told = driven.forwarded([(PagedRow([4, 5, 6]), 3), (PagedRow([4, 9, 3]), 3)])

    assert told.finite.tolist() == [True, False]
    assert all(bool(tensor.isfinite().all()) for tensor in driven.pools.tensors().values())


def test_ranks_give_what_one_rank_gives() -> None:
    prompt = words(90, VOCAB)

    def run(ranks: ThreadRanks) -> Tensor:
        made = built(CudaGqa, "qwen3", CPU, ranks, deterministic=True)
        return PageRig(made, garbage=GARBAGE).prefill(PagedRow(prompt), 50)

    one = built(CudaGqa, "qwen3", CPU, OneRank(), deterministic=True)
    alone = PageRig(one, garbage=GARBAGE).prefill(PagedRow(prompt), 50)
    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3_moe"])
def test_a_graph_gives_the_bits_of_plain_launches(name: str, deterministic: bool) -> None:
    prompts = [words(length, VOCAB, seed=length) for length in (3, 131, 700)]
    made = network(name, deterministic=deterministic)
    assert_graphs_give_the_bits_of_launches(made, prompts, DEVICE)
