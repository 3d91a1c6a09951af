"""Checkpoints of every family with sizes and options drawn at random, made by transformers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.testing.gpt_oss_checkpoints import fill_mixture
from tests.testing.gqa_checkpoints import VOCAB, fill

__all__ = ["FAMILIES", "write_random"]

Fields = dict[str, Any]
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ALL_ROPES = ("default", "linear", "llama3", "yarn")


def _rope(draw: random.Random, kinds: tuple[str, ...] = _ALL_ROPES) -> Fields:
    kind = draw.choice(kinds)
    made: Fields = {"rope_type": kind, "rope_theta": draw.choice([1e3, 1e4, 5e5])}
    if kind != "default":
        made["factor"] = draw.choice([2.0, 3.0, 8.0, 40.0])
    if kind in ("llama3", "yarn"):
        made["original_max_position_embeddings"] = draw.choice([32, 64, 100])
    if kind == "llama3":
        made |= {"low_freq_factor": draw.choice([0.5, 1.0]), "high_freq_factor": 4.0}
    if kind == "yarn" and draw.random() < 0.5:
        made |= {"beta_fast": draw.choice([8.0, 16.0]), "truncate": draw.random() < 0.5}
    return made


def _all(draw: random.Random) -> Fields:
    key_heads = draw.choice([1, 2, 3, 4])
    heads = key_heads * draw.choice([1, 2, 3, 4])
    return {
        "vocab_size": VOCAB,
        "hidden_size": heads * draw.choice([8, 12, 16, 20]),
        "intermediate_size": draw.choice([32, 96, 160]),
        "num_hidden_layers": draw.choice([1, 2, 3, 5]),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": draw.choice([2048, 4096]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-2]),
        "bos_token_id": draw.choice([None, 0]),
        "eos_token_id": draw.choice([1, [1, 2, 5], None]),
        "pad_token_id": None,
        "tie_word_embeddings": draw.random() < 0.5,
    }


def _dense(draw: random.Random) -> Fields:
    return {
        **_all(draw),
        "rope_parameters": _rope(draw),
        "head_dim": draw.choice([8, 18, 32, 40]),
        "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
    }


def _windowed(draw: random.Random) -> Fields:
    return {
        **_dense(draw),
        "use_sliding_window": draw.random() < 0.5,
        "sliding_window": draw.choice([1, 16, 70, 5000]),
        "max_window_layers": draw.choice([0, 1, 28]),
    }


def _mixture(draw: random.Random) -> Fields:
    return {
        **_windowed(draw),
        "num_experts": draw.choice([4, 8, 13]),
        "num_experts_per_tok": draw.choice([1, 2, 3]),
        "moe_intermediate_size": draw.choice([24, 48]),
        "norm_topk_prob": draw.random() < 0.5,
        "decoder_sparse_step": draw.choice([1, 1, 2]),
        "mlp_only_layers": draw.choice([[], [0]]),
    }


def _latent(draw: random.Random) -> Fields:
    common, rope = _all(draw), _rope(draw, ("default", "yarn"))
    groups, each = draw.choice([1, 2, 4]), draw.choice([2, 4, 5])
    kept = draw.randint(1, groups)
    if "factor" in rope and draw.random() < 0.8:
        rope |= {"mscale": draw.choice([1.0, 0.707]), "mscale_all_dim": draw.choice([1.0, 0.707])}
    return {
        **common,
        "num_key_value_heads": common["num_attention_heads"],
        "rope_parameters": rope,
        "attention_bias": draw.random() < 0.3,
        "kv_lora_rank": draw.choice([16, 40, 64]),
        "q_lora_rank": draw.choice([None, 24, 48]),
        "qk_nope_head_dim": draw.choice([8, 24]),
        "qk_rope_head_dim": draw.choice([8, 16, 32]),
        "v_head_dim": draw.choice([8, 20, 24]),
        "moe_intermediate_size": draw.choice([24, 48]),
        "n_routed_experts": groups * each,
        "n_shared_experts": draw.choice([1, 2]),
        "n_group": groups,
        "topk_group": kept,
        "num_experts_per_tok": draw.randint(1, min(4, kept * each)),
        "first_k_dense_replace": draw.choice([0, 1, 2]),
        "routed_scaling_factor": draw.choice([1.0, 2.5, 16.0]),
    }


def _v2(draw: random.Random) -> Fields:
    return {**_latent(draw), "topk_method": draw.choice(["greedy", "group_limited_greedy"])}


def _v3(draw: random.Random) -> Fields:
    flags = {name: draw.random() < 0.5 for name in ("norm_topk_prob", "rope_interleave")}
    return {**_latent(draw), **flags}


def _v32(draw: random.Random) -> Fields:
    return {
        **_latent(draw),
        "q_lora_rank": 24,
        "index_n_heads": draw.choice([16, 32]),
        "index_head_dim": draw.choice([32, 64]),
        "index_topk": draw.choice([7, 48, 64]),
    }


def _by_layer(draw: random.Random, windows: list[int]) -> Fields:
    layers = draw.choice([2, 3, 4, 6])
    kinds = [draw.choice([_FULL, _SLIDING]) for _ in range(layers)]
    return {
        **_all(draw),
        "num_hidden_layers": layers,
        "head_dim": draw.choice([8, 16, 32]),
        "sliding_window": draw.choice(windows),
        "layer_types": draw.choice([None, kinds]),
    }


def _gpt_oss(draw: random.Random) -> Fields:
    return {
        **_by_layer(draw, [2, 12, 64, 70, 128]),
        "rope_parameters": _rope(draw, ("yarn", "default", "llama3")),
        "num_local_experts": 6,
        "num_experts_per_tok": draw.choice([1, 2, 3]),
        "swiglu_limit": draw.choice([2.0, 7.0]),
    }


def _gemma(draw: random.Random) -> Fields:
    local = {"rope_type": "default", "rope_theta": 1e3}
    return {
        **_by_layer(draw, [3, 14, 64, 65]),
        "rope_parameters": {_FULL: _rope(draw, ("default", "linear")), _SLIDING: local},
        "query_pre_attn_scalar": draw.choice([16, 20, 256]),
    }


# Class prefix of transformers -> what draws its fields.
FAMILIES: dict[str, Callable[[random.Random], Fields]] = {
    "Llama": _dense,
    "Mistral": _windowed,
    "Qwen2": _windowed,
    "Qwen3": _windowed,
    "Qwen3Moe": _mixture,
    "DeepseekV2": _v2,
    "DeepseekV3": _v3,
    "DeepseekV32": _v32,
    "GptOss": _gpt_oss,
    "Gemma3": _gemma,
}


def write_random(prefix: str, draw: random.Random, folder: Path) -> Any:
    """Write a checkpoint of a family, and return what transformers reads from it.

    Files hold float32 or bfloat16, and are one or several. Skips the test where transformers is
    not there.
    """
    transformers = pytest.importorskip("transformers")
    suffix = "TextConfig" if prefix == "Gemma3" else "Config"
    config = getattr(transformers, f"{prefix}{suffix}")(**FAMILIES[prefix](draw))
    kind = getattr(transformers, f"{prefix}ForCausalLM")
    made = kind(config).float()
    (fill_mixture if prefix == "GptOss" else fill)(made)
    if prefix == "Gemma3":
        _shrink(made)
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16])
    # A correction bias is never rounded.
    made.to(torch.float32 if prefix == "DeepseekV32" else dtype)
    made.save_pretrained(folder, max_shard_size=draw.choice(["60KB", "1GB"]))
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def _shrink(model: Any) -> None:
    """Give Gemma's norms the weights that they add one to."""
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight -= 1.0
