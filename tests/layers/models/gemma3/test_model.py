"""The family against transformers, and a network against itself: chunks, reuse, ranks."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.models.contract import Settings
from layers.models.gemma3.config import GemmaConfig, parse_config
from layers.models.gemma3.model import GemmaModel
from layers.models.gpt_oss.model import WindowedNetwork
from layers.models.registry import read_model
from layers.models.rope_fields import RopeFields
from layers.weights.loading import load_weights
from tests.layers.models.gemma3.test_config import SMALL
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy, write
from tests.testing.thread_ranks import ThreadRanks, in_ranks
from tests.testing.window_rig import WindowRig, WindowRow

CPU = torch.device("cpu")
FULL, SLIDING = "full_attention", "sliding_attention"
FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 20,
    "sliding_window": 14,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
    },
}


def reference() -> Any:
    """Return a model of transformers with random weights; skip the test where it is not there."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma3TextConfig(**FIELDS)
    config._attn_implementation = "eager"
    model = transformers.Gemma3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.2 if "norm" in name else 0.3 if "embed" in name else 0.15
            weight.copy_(torch.randn_like(weight) * spread)
    return model


def words(count: int) -> list[int]:
    """Return random token ids."""
    return [random.randrange(2, VOCAB) for _ in range(count)]


def loaded(folder: Path, **settings: Any) -> WindowedNetwork:
    """Return the network of a checkpoint."""
    made = read_model(folder).build(CPU, Settings(**settings))
    assert isinstance(made, WindowedNetwork)
    load_weights(made, folder, progress=False)
    return made


@pytest.mark.parametrize(
    ("changes", "numbers", "replay"),
    [
        ({}, 268_098_176, 7_665),
        (
            {"num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 6912},
            999_885_952,
            11_242,
        ),
    ],
    ids=["270m", "1b"],
)
def test_published_sizes_make_the_published_number_of_parameters(
    changes: dict[str, Any], numbers: int, replay: int
) -> None:
    made = GemmaModel(parse_config(SMALL | changes, {}, {})).build(torch.device("meta"), Settings())

    assert sum(math.prod(view.shape) for _, view in made.named_weights()) == numbers
    assert made.cache.replay_tokens == replay


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    model = reference()
    rig = WindowRig(loaded(write(model, tmp_path)))

    for length, chunk in ((1, 1), (150, 7), (301, 1024)):
        prompt = words(length)
        assert_greedy(model, prompt, rig.greedy(prompt, 6, chunk=chunk))


TRAPS: dict[str, Callable[[GemmaConfig], GemmaConfig]] = {
    "a window of one token less": lambda config: replace(config, window=config.window - 1),
    "another scale": lambda config: replace(config, scale=config.head_dim**-0.5),
    "ropes exchanged": lambda config: replace(config, ropes=config.ropes[::-1]),
    "plain rope in full layers": lambda config: replace(
        config, ropes=(RopeFields(config.ropes[0].theta), config.ropes[1])
    ),
}


def test_each_mechanism_shows_in_the_logits(tmp_path: Path) -> None:
    model, prompt = reference(), words(200)
    folder = write(model, tmp_path)
    read = read_model(folder)
    assert isinstance(read, GemmaModel)
    with torch.inference_mode():
        want = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]

    def distance(config: GemmaConfig) -> float:
        made = GemmaModel(config).build(CPU, Settings())
        load_weights(made, folder, progress=False)
        got = WindowRig(made, pages=4, swa_pages=8).prefill(WindowRow(prompt), 2048)
        return float((got - want).abs().max())

    assert distance(read.config) < 2e-4
    for trap, change in TRAPS.items():
        assert distance(change(read.config)) > 1e-2, f"with {trap} nothing changes"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_has_the_same_bits_in_any_chunk_and_from_the_cache(
    dtype: str, tmp_path: Path
) -> None:
    rig, prompt = WindowRig(loaded(write(reference(), tmp_path), dtype=dtype)), words(300)
    whole = WindowRow(prompt)
    want = rig.prefill(whole, 2048, (256, 299))

    for row in (
        WindowRow(prompt),
        *(rig.fork(whole, prompt, at) for at in (256, 299)),
        *(rig.replay(whole, prompt, at) for at in (20, 256, 299)),
    ):
        assert_same_bits(rig.prefill(row, 53), want)


def test_ranks_give_what_one_rank_gives(tmp_path: Path) -> None:
    folder, prompt = write(reference(), tmp_path), words(90)
    alone = WindowRig(loaded(folder)).prefill(WindowRow(prompt), 2048)

    def run(ranks: ThreadRanks) -> Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        load_weights(made, folder, progress=False)
        return WindowRig(made).prefill(WindowRow(prompt), 50)

    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, Bounds(atol=1e-4))
