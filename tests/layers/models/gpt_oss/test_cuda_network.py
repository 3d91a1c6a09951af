"""The network in bfloat16, on a GPU if there is one: the reference's logits, and its own bits.

Without a GPU the references of its ops run, which shows that it is wired right.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.models.contract import Settings
from layers.models.gpt_oss.config import parse_config
from layers.models.gpt_oss.model import CudaGptOss, GptOssModel, WindowedNetwork
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from layers.weights.loading import fill_dummy
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.cuda_decoders import (
    GARBAGE,
    assert_graphs_give_the_bits_of_launches,
    copy_weights,
    logits_of,
    words,
)
from tests.testing.gpt_oss_checkpoints import published_config
from tests.testing.gqa_checkpoints import VOCAB
from tests.testing.thread_ranks import ThreadRanks, in_ranks
from tests.testing.window_rig import WindowRig, WindowRow

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
# Sizes that kernels take; the rest is as small as the checkpoints are.
SIZES = {
    **{"head_dim": 64, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_local_experts": 8},
}
# Windows below an SWA page, of a ring of two with room to spare, and of a full one.
WINDOWS = {"in_turn": 12, "wide": 70, "full_ring": 128}
# Every layer rounds what it makes to bfloat16, weights and pages are the same on both sides. On a
# GPU weights of keys are rounded, too. With another gate or clamp rms is 0.09 and more.
BOUNDS = Bounds(cosine=0.9995, rms=0.015 if DEVICE == CPU else 0.03, atol=torch.inf)
SEED = 3


def read(name: str) -> GptOssModel:
    """Return a model."""
    window = {"sliding_window": WINDOWS[name]}
    raw = published_config("wide" if name == "full_ring" else name)
    return GptOssModel(parse_config(raw, {}, {**SIZES, **window}))


@cache
def plain(name: str, ranks: Ranks | None = None) -> WindowedNetwork:
    """Return the reference, whose matrices are bfloat16, with random weights and biases."""
    made = read(name).build(CPU, Settings(dtype="bfloat16"), ranks)
    assert isinstance(made, WindowedNetwork)
    fill_dummy(made, SEED)
    draw = torch.Generator().manual_seed(SEED)
    for key, target in made.named_weights():
        if key.endswith(".bias"):
            assert isinstance(target, Tensor)
            target.normal_(0.0, 0.3, generator=draw)
    return made


@cache
def network(name: str, *, deterministic: bool = True) -> CudaGptOss:
    """Return the network; made once."""
    numbers = Numbers(DEVICE, Settings(dtype="bfloat16", deterministic=deterministic), name)
    made = CudaGptOss(read(name).config, numbers, OneRank())
    copy_weights(plain(name), made)
    return made


# The references of ops are invariant in any case.
@pytest.mark.parametrize("deterministic", [True] if DEVICE == CPU else [True, False])
@pytest.mark.parametrize("name", WINDOWS)
def test_logits_are_those_of_plain_numbers(name: str, deterministic: bool) -> None:
    prompt = words(281, VOCAB)
    rig = WindowRig(plain(name))
    want = [rig.prefill(WindowRow(prompt[:stop]), 2048) for stop in (279, 280, 281)]

    made = network(name, deterministic=deterministic)
    got = logits_of(made, prompt, prompt[100:140], DEVICE)

    for one, other_one in zip(got, want, strict=True):
        assert_close(one, other_one, BOUNDS)
    assert float(want[0].std()) > 0.1


@pytest.mark.parametrize("name", WINDOWS)
def test_a_token_has_the_same_bits_decoded_in_any_chunk_company_and_from_the_cache(
    name: str,
) -> None:
    rig, prompt = WindowRig(network(name), garbage=GARBAGE), words(300, VOCAB)
    whole, points = WindowRow(prompt), (1, 256, 290)
    want = rig.prefill(whole, 2048, points)
    before = rig.prefill(WindowRow(prompt[:299]), 2048)

    for chunk in (64, 129, 257):
        assert_same_bits(rig.prefill(WindowRow(prompt), chunk), want, what=f"chunks of {chunk}")
    for at in points:
        assert_same_bits(rig.prefill(rig.fork(whole, prompt, at), 100), want, what=f"from {at}")
        assert_same_bits(rig.prefill(rig.replay(whole, prompt, at), 100), want, what=f"to {at}")
    others = [WindowRow(words(length, VOCAB, seed=length)) for length in (3, 131, 290)]
    mine = rig.fork(whole, prompt, 290)
    rig.step([*((row, len(row.tokens) - 2) for row in others), (mine, 298)])
    first, last = (rig.decode([*others, mine], DEVICE)[-1] for _ in range(2))
    assert_same_bits(first, before, what="decoded")
    assert_same_bits(last, want, what="decoded after what was decoded")


def test_a_ring_that_decoding_has_gone_round_is_that_of_a_chunk() -> None:
    rig, prompt = WindowRig(network("wide"), garbage=GARBAGE), words(300, VOCAB)
    want, row = rig.prefill(WindowRow(prompt), 2048), WindowRow(prompt)
    rig.step([(row, 60)])

    while row.done < 298:
        rig.decode([row], DEVICE)

    assert_same_bits(rig.step([(row, 300)])[0], want)


def test_rejected_drafts_leave_no_trace() -> None:
    config, prompt = read("wide").config, words(200, VOCAB)
    settings: dict[str, Any] = {"dtype": "bfloat16", "deterministic": True, "draft_tokens": 3}
    made = CudaGptOss(config, Numbers(DEVICE, Settings(**settings), "wide"), OneRank())
    copy_weights(plain("wide"), made)
    rig, row = WindowRig(made, garbage=GARBAGE), WindowRow([*prompt])
    want = rig.prefill(WindowRow(prompt), 2048)

    rig.step([(row, 150)])
    while row.done < 199:
        accepted = row.done + 1
        row.tokens = [*prompt[:accepted], *words(3, VOCAB, seed=accepted)]
        rig.step([(row, accepted + 3)], move=True)
        row.done = accepted
    row.tokens = prompt

    assert_same_bits(rig.prefill(row, 2048), want)


def test_rows_with_a_number_that_is_not_finite_are_told_and_leave_none() -> None:
    numbers = Numbers(DEVICE, Settings(dtype="bfloat16"), "wide")
    made = CudaGptOss(read("wide").config, numbers, OneRank())
    copy_weights(plain("wide"), made)
    table = dict(made.named_weights())["model.embed_tokens.weight"]
    assert isinstance(table, Tensor)
    table[9] = torch.nan
    rig = WindowRig(made, garbage=GARBAGE)

    told = rig.forwarded([(WindowRow([4, 5, 6]), 3), (WindowRow([4, 9, 3]), 3)])

    assert told.finite.tolist() == [True, False]
    assert all(bool(tensor.isfinite().all()) for tensor in rig.pools.tensors().values())


def test_ranks_give_what_one_rank_gives() -> None:
    prompt = words(90, VOCAB)
    numbers = Numbers(CPU, Settings(dtype="bfloat16", deterministic=True), "wide")

    def run(ranks: Ranks) -> Tensor:
        made = CudaGptOss(read("wide").config, numbers, ranks)
        fill_dummy(made, SEED)
        return WindowRig(made, garbage=GARBAGE).prefill(WindowRow(prompt), 50)

    def in_rank(ranks: ThreadRanks) -> Tensor:
        return run(ranks)

    both = in_ranks(2, in_rank)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], run(OneRank()), BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_graph_gives_the_bits_of_plain_launches(name: str, deterministic: bool) -> None:
    prompts = [words(length, VOCAB, seed=length) for length in (3, 131, 700)]
    made = network(name, deterministic=deterministic)
    assert_graphs_give_the_bits_of_launches(made, prompts, DEVICE)
