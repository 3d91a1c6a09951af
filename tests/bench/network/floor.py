"""The bytes a decode step must read once: dense weights, experts routed to, and KV.

Their time at the bandwidth of a large copy is the floor that a step is measured against.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import layers.experts.router as router_module
from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.expert_form import expert_bytes
from layers.models.deepseek_v4.layout import indexer_layout, record_layout
from layers.models.deepseek_v4.model import QuantisedV4
from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.weights.part import Part
from layers.weights.weight_target import Fp8Target

__all__ = ["StepBytes", "dense_bytes", "expected_experts", "kv_bytes", "one_expert_bytes", "routed"]


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a step reads; `experts` are those of all layers together."""

    dense: int
    experts: int
    kv: int

    def floor_ms(self, bandwidth: float) -> float:
        """Return milliseconds at `bandwidth` bytes a second."""
        return (self.dense + self.experts + self.kv) / bandwidth * 1e3


def dense_bytes(network: QuantisedV4) -> int:
    """Return the bytes of all weights that every step reads whole.

    Embeddings and routing tables are read by a row or two, routed experts by those chosen.
    """
    total = 0
    for name, stored in network.named_weights():
        if name == "embed.weight" or name.endswith(".tid2eid") or ".ffn.experts." in name:
            continue
        if isinstance(stored, Part):
            stored = stored.target
        if isinstance(stored, Tensor):
            total += stored.nbytes
        else:
            assert isinstance(stored, Fp8Target), name
            total += stored.codes.nbytes + stored.scales.nbytes
    return total


def one_expert_bytes(config: ModelConfig, form: ExpertForm) -> int:
    """Return the bytes of one routed expert in the form that decode reads."""
    fp8 = expert_bytes(config, "fp8")
    total = fp8 if form == "fp8" else expert_bytes(config, "both") - fp8
    return total // (config.num_hidden_layers * config.n_routed_experts)


def expected_experts(config: ModelConfig, rows: int) -> float:
    """Return how many experts a layer's step touches on average if routing were uniform."""
    count = config.n_routed_experts
    return count * (1 - (1 - config.num_experts_per_tok / count) ** rows)


def kv_bytes(config: ModelConfig, spec: PoolSpec, tokens: int) -> int:
    """Return the bytes of KV that a row with `tokens` tokens behind it reads in all layers."""
    record = record_layout(spec, spec.tree.swa_page_size).row_bytes
    window = min(spec.tree.window, tokens) * record
    blocks = {
        0: 0,
        4: min(config.index_topk, tokens // 4) * record
        + tokens // 4 * indexer_layout(spec).row_bytes,
        128: tokens // 128 * record,
    }
    return sum(window + blocks[ratio] for ratio in config.compress_ratios)


@contextmanager
def routed() -> Iterator[list[int]]:
    """Count the distinct experts of each routing call while this is open; not inside a graph."""
    counts: list[int] = []

    def counting(route: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
            experts, weights = route(*args, **options)
            counts.append(int(torch.unique(experts).numel()))
            return experts, weights

        return call

    with ExitStack() as stack:
        for name in ("route_topk", "route_hashed"):
            wrapped = counting(getattr(router_module, name))
            stack.enter_context(patch.object(router_module, name, wrapped))
        yield counts
