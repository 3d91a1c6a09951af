"""The family against transformers, and a network against itself: chunks, reuse, ranks."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from layers.models.contract import Settings
from layers.models.gpt_oss.config import GptOssConfig, parse_config
from layers.models.gpt_oss.model import GptOssModel, WindowedNetwork
from layers.models.json_fields import ConfigFault
from layers.models.registry import read_model
from layers.models.rope_scaling import YarnScaling
from layers.parallel.shares import UnevenShares
from layers.weights.loading import fill_dummy, load_weights
from tests.layers.models.gpt_oss.test_config import LARGE, SMALL
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.gpt_oss_checkpoints import (
    CHECKPOINTS,
    reference,
    write_config,
    write_packed,
)
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy, write
from tests.testing.thread_ranks import ThreadRanks, in_ranks
from tests.testing.window_rig import WindowRig, WindowRow

SEED = 3
CPU = torch.device("cpu")


def words(count: int) -> list[int]:
    """Return random token ids."""
    return [random.randrange(2, VOCAB) for _ in range(count)]


def loaded(folder: Path) -> WindowedNetwork:
    """Return the network of a checkpoint."""
    made = read_model(folder).build(CPU, Settings())
    assert isinstance(made, WindowedNetwork)
    load_weights(made, folder, progress=False)
    return made


def dummy(folder: Path, **settings: Any) -> WindowedNetwork:
    """Return the network of a folder with random weights."""
    made = read_model(folder).build(CPU, Settings(**settings))
    assert isinstance(made, WindowedNetwork)
    fill_dummy(made, SEED)
    return made


@pytest.mark.parametrize(
    ("raw", "numbers", "replay"),
    [(SMALL, 20_914_757_184, 1_524), (LARGE, 116_829_156_672, 2_286)],
    ids=["20b", "120b"],
)
def test_published_sizes_make_the_published_number_of_parameters_and_a_short_replay(
    raw: dict[str, Any], numbers: int, replay: int
) -> None:
    model = GptOssModel(parse_config(raw, {}, {"quantization_config": None}))

    made = model.build(torch.device("meta"), Settings(dtype="bfloat16"))

    assert sum(math.prod(view.shape) for _, view in made.named_weights()) == numbers
    cache, layers = made.cache, raw["num_hidden_layers"] // 2
    assert cache.replay_tokens == replay
    assert (cache.tree.window, cache.tree.window_pages, cache.states) == (128, 2, ())
    # Keys and values of 8 heads of 64 channels.
    assert cache.full_page_bytes == 256 * layers * 2048
    assert cache.swa_page_bytes == 64 * layers * 2048


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name)
    rig = WindowRig(loaded(write(model, tmp_path)))

    for length, chunk in ((1, 1), (200, 7), (301, 64), (470, 1024)):
        prompt = words(length)
        assert_greedy(model, prompt, rig.greedy(prompt, 8, chunk=chunk))


def with_rope(**fields: Any) -> Callable[[GptOssConfig], GptOssConfig]:
    """Return what changes fields of the rope."""

    def change(config: GptOssConfig) -> GptOssConfig:
        return replace(config, rope=replace(config.rope, **fields))

    return change


def with_truncated_ramp(config: GptOssConfig) -> GptOssConfig:
    """Return it with a ramp that begins and ends at whole channels."""
    assert isinstance(config.rope.scaling, YarnScaling)
    return with_rope(scaling=replace(config.rope.scaling, truncate=True))(config)


def with_experts(**fields: Any) -> Callable[[GptOssConfig], GptOssConfig]:
    """Return what changes fields of the experts."""

    def change(config: GptOssConfig) -> GptOssConfig:
        return replace(config, experts=replace(config.experts, **fields))

    return change


TRAPS: dict[str, Callable[[GptOssConfig], GptOssConfig]] = {
    "a window of one token less": lambda config: replace(config, window=config.window - 1),
    "a window of one token more": lambda config: replace(config, window=config.window + 1),
    "windows on the other layers": lambda config: replace(
        config, sliding=tuple(not sliding for sliding in config.sliding)
    ),
    "cosines without a factor": with_rope(attention_factor=1.0),
    "a ramp between whole channels": with_truncated_ramp,
    "plain rope": with_rope(scaling=None),
    "no clamp": with_experts(limit=1e9),
    "another gate": with_experts(alpha=1.0),
    "fewer experts": with_experts(chosen=2),
}


def halves(weight: Tensor) -> Tensor:
    """Return gates and what they gate one after the other, as a reader might take them."""
    return torch.cat((weight[..., ::2], weight[..., 1::2]), -1)


FILE_TRAPS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "dropped sinks": ("self_attn.sinks", lambda sinks: torch.full_like(sinks, -1e9)),
    "gates in the first half": ("experts.gate_up_proj", halves),
    "biases of gates in the first half": ("experts.gate_up_proj_bias", halves),
    "no bias behind experts": ("experts.down_proj_bias", torch.zeros_like),
    "no bias of the router": ("router.bias", torch.zeros_like),
    "no bias of queries": ("q_proj.bias", torch.zeros_like),
    "no bias of outputs": ("o_proj.bias", torch.zeros_like),
}


def test_each_mechanism_shows_in_the_logits(tmp_path: Path) -> None:
    model, prompt = reference("in_turn"), words(200)
    folder = write(model, tmp_path)
    read, file = read_model(folder), folder / "model.safetensors"
    assert isinstance(read, GptOssModel)
    tensors = load_file(file)
    with torch.inference_mode():
        want = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]

    def distance(config: GptOssConfig) -> float:
        made = GptOssModel(config).build(CPU, Settings())
        load_weights(made, folder, progress=False)
        got = WindowRig(made, pages=4, swa_pages=8).prefill(WindowRow(prompt), 2048)
        return float((got - want).abs().max())

    assert distance(read.config) < 2e-4
    for trap, change in TRAPS.items():
        assert distance(change(read.config)) > 2e-2, f"with {trap} nothing changes"
    for trap, (end, alter) in FILE_TRAPS.items():
        changed = {k: alter(v).contiguous() if k.endswith(end) else v for k, v in tensors.items()}
        save_file(changed, file, metadata={"format": "pt"})
        assert distance(read.config) > 2e-2, f"with {trap} nothing changes"


def test_a_published_checkpoint_gives_what_its_numbers_give(tmp_path: Path) -> None:
    model, prompt = reference("in_turn"), words(70)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    write_packed(model, packed)
    want = WindowRig(loaded(write(model, plain))).prefill(WindowRow(prompt), 2048)

    rig = WindowRig(loaded(packed))

    assert_same_bits(rig.prefill(WindowRow(prompt), 2048), want)
    assert_greedy(model, prompt, rig.greedy(prompt, 4))


@pytest.mark.parametrize(("name", "dtype"), [("wide", "float32"), ("in_turn", "bfloat16")])
def test_a_token_has_the_same_bits_in_any_chunk_company_and_from_the_cache(
    name: str, dtype: str, tmp_path: Path
) -> None:
    made = dummy(write_config(name, tmp_path), dtype=dtype)
    rig, prompt, other = WindowRig(made), words(600), words(300)
    whole, points = WindowRow(prompt), (1, 256, 511, 598, 599)
    want = rig.prefill(whole, 2048, points)

    for chunk in (1, 64, 255, 257):
        start = WindowRow(prompt[:90] if chunk == 1 else prompt)
        got = rig.prefill(start, chunk)
        assert_same_bits(got, rig.prefill(WindowRow(start.tokens), 2048))
    for at in (1, 256, 511, 599):
        assert_same_bits(rig.prefill(rig.fork(whole, prompt, at), 100), want)
        assert_same_bits(rig.prefill(rig.replay(whole, prompt, at), 100), want)
    one, two = rig.fork(whole, prompt, 598), WindowRow(other)
    rig.step([(two, 299), (one, 599)])
    both = rig.step([(one, 600), (two, 300)])
    assert_same_bits(both[0], want)
    assert_same_bits(both[1], rig.prefill(WindowRow(other), 2048))


def test_a_replay_of_one_token_less_would_not_do(tmp_path: Path) -> None:
    made = dummy(write_config("in_turn", tmp_path))
    rig, prompt = WindowRig(made), words(300)
    whole = WindowRow(prompt)
    want = rig.prefill(whole, 2048)

    late = rig.replay(whole, prompt, 299)
    late.done = late.window_from = late.done + 1

    assert not torch.equal(rig.prefill(late, 2048), want)


def test_rejected_drafts_leave_no_trace(tmp_path: Path) -> None:
    model, prompt = read_model(write_config("wide", tmp_path), "sliding_window=65"), words(300)
    made = model.build(CPU, Settings(draft_tokens=3))
    fill_dummy(made, SEED)
    assert made.cache.tree.window_pages == 2
    rig = WindowRig(made)
    want = rig.prefill(WindowRow(prompt), 2048)

    row = WindowRow([*prompt])
    rig.step([(row, 120)])
    while row.done < 299:
        accepted = row.done + 1
        row.tokens = [*prompt[:accepted], *words(3)]
        rig.step([(row, accepted + 3)], move=True)
        row.done = accepted
    row.tokens = prompt

    assert_same_bits(rig.prefill(row, 2048), want)


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    folder, prompt = write_config("in_turn", tmp_path), words(200)

    exact, rounded = (
        WindowRig(dummy(folder, dtype=dtype)).prefill(WindowRow(prompt), 2048).softmax(0)
        for dtype in ("float32", "bfloat16")
    )

    assert float((exact - rounded).abs().sum()) < 0.1
    info = dummy(folder, dtype="bfloat16")
    assert (info.facts["dtype"], info.facts["record_format"]) == ("bfloat16", "bf16")
    assert info.cache.swa_page_bytes * 2 == dummy(folder).cache.swa_page_bytes


def test_ranks_give_what_one_rank_gives(tmp_path: Path) -> None:
    folder, prompt = write_packed(reference("in_turn"), tmp_path), words(90)
    alone = WindowRig(loaded(folder)).prefill(WindowRow(prompt), 2048)

    def run(ranks: ThreadRanks) -> Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        load_weights(made, folder, progress=False)
        return WindowRig(made).prefill(WindowRow(prompt), 50)

    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, Bounds(atol=1e-4))
    with pytest.raises(UnevenShares, match="6 heads"):
        in_ranks(4, run)


def test_what_does_not_suit_it_is_refused(tmp_path: Path) -> None:
    model = read_model(write_config("in_turn", tmp_path))

    with pytest.raises(ConfigFault, match="kv_cache_dtype fp8 is not for model_type gpt_oss"):
        model.build(CPU, Settings(kv_cache_dtype="fp8"))
    with pytest.raises(ConfigFault, match="head_dim is 32, and on a GPU it must be one of 64"):
        model.check_cuda()
    with pytest.raises(ConfigFault, match="num_local_experts is 6"):
        read_model(write_config("in_turn", tmp_path), "head_dim=64,hidden_size=128").check_cuda()
    GptOssModel(parse_config(SMALL, {}, {})).check_cuda()
