"""A network of the true head geometry that a CPU runs in no time, for the tests of this folder."""

from dataclasses import replace
from functools import cache

import torch

from layers.models.deepseek_v4.config import ModelConfig, load_config
from layers.models.deepseek_v4.model import QuantisedV4
from layers.weights.loading import fill_dummy
from tests.bench.network.__main__ import CUT

__all__ = ["SMALL", "network"]

SMALL: ModelConfig = replace(
    load_config(CUT),
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=4,
    compress_ratios=(0, 4, 128, 4),
    num_hash_layers=1,
    num_attention_heads=4,
    q_lora_rank=128,
    o_groups=2,
    o_lora_rank=128,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    index_n_heads=4,
    index_topk=32,
)


@cache
def network() -> QuantisedV4:
    """Return the network with random weights; made once."""
    made = QuantisedV4(SMALL, torch.device("cpu"), experts="both")
    fill_dummy(made, 3)
    return made
