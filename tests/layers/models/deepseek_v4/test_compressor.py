"""What a layer compresses with: which kind, the names of its weights, what it hands to a step."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.linear.quantised import Fp8Rows
from layers.models.deepseek_v4.compressor import Fold, Pooling, compressor_of
from layers.steps.contract import FoldWeights, PoolingWeights
from layers.steps.decode_step import DecodeStep
from tests.testing.compare import assert_same_bits
from tests.testing.tiny_model import PACKED

CONFIG = dataclasses.replace(PACKED, hidden_size=128, q_lora_rank=128)
WIDTH, INDEX = CONFIG.head_dim, CONFIG.index_head_dim


class NotedStep(DecodeStep):
    """Takes what a step is given, by the name of the call, and does nothing with it."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[Any, ...]] = {}

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        self.given["pool"] = layer, rows, weights

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        self.given["fold"] = layer, rows, weights

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        self.given["score"] = layer, q, weights


def filled(made: Pooling | Fold) -> Pooling | Fold:
    """Give the weights numbers."""
    for _, target in made.named_weights(""):
        if isinstance(target, Tensor):
            target.normal_()
    return made


@pytest.mark.parametrize(("ratio", "kind"), [(4, Pooling), (128, Fold)])
def test_the_ratio_says_which(ratio: int, kind: type, device: torch.device) -> None:
    assert isinstance(compressor_of(CONFIG, ratio, device, deterministic=False), kind)
    assert compressor_of(CONFIG, 0, device, deterministic=False) is None


def test_weights_of_both_have_the_names_of_files(device: torch.device) -> None:
    pooling, fold = (compressor_of(CONFIG, ratio, device, False) for ratio in (4, 128))
    assert pooling is not None
    assert fold is not None

    own = {"compressor.wkv.weight", "compressor.wgate.weight", "compressor.norm.weight"}
    assert {name for name, _ in fold.named_weights("")} == own | {"compressor.ape"}
    index = {f"indexer.{name}" for name in own}
    more = {"indexer.wq_b.weight", "indexer.weights_proj.weight", "indexer.compressor.ape"}
    assert {name for name, _ in pooling.named_weights("")} == own | index | more | {
        "compressor.ape"
    }
    shapes = {name: tuple(w.shape) for name, w in fold.named_weights("") if isinstance(w, Tensor)}
    assert shapes["compressor.ape"] == (128, WIDTH)
    assert shapes["compressor.wkv.weight"] == (WIDTH, 128)


def test_a_pooling_layer_writes_state_rows_and_scores_by_the_rest(device: torch.device) -> None:
    made, step = filled(Pooling(CONFIG, device, False)), NotedStep()
    x = torch.randn(3, 128).bfloat16()
    states, heads = 4 * WIDTH + 4 * INDEX, CONFIG.index_n_heads

    parts = (made.rows(x), *made.queries(Fp8Rows(x)))
    made.write(parts[:1], step, 7)
    made.score(parts, step, 7)

    rows, queries = parts
    assert rows.shape == (3, states + heads)
    assert queries.shape == (3, heads, INDEX)
    layer, written, _ = step.given["pool"]
    assert layer == 7
    assert_same_bits(written, rows[:, :states])
    layer, scored, weights = step.given["score"]
    assert layer == 7
    assert scored is queries
    assert_same_bits(weights, rows[:, states:])


def test_a_folding_layer_writes_all_and_scores_nothing(device: torch.device) -> None:
    made, step = filled(Fold(CONFIG, device, False)), NotedStep()
    x = torch.randn(3, 128).bfloat16()

    parts = (made.rows(x), *made.queries(Fp8Rows(x)))
    made.write(parts, step, 2)
    made.score(parts, step, 2)

    assert [part.shape for part in parts] == [(3, 2 * WIDTH)]
    assert step.given.keys() == {"fold"}
    layer, written, weights = step.given["fold"]
    assert layer == 2
    assert written is parts[0]
    assert not weights.ape[:, :WIDTH].any()
    assert weights.ape[:, WIDTH:].all()
