"""Weights of the stand-in model: random, in the published file format.

Attention and experts are scaled up against a plain 1/fan_in, so that what a token becomes
depends on its context and greedy output wanders over the vocabulary instead of repeating one
token; logits have a standard deviation of about 3.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from layers.config import ModelConfig
from layers.quant import quantise_fp4, quantise_fp8
from layers.random_weights import fill_random

_HEAD_GAIN = 3.6  # over all ids, the quiet ones included, logits then spread by 3
_QUIET_GAIN = 0.3
# First match by the end of the name wins.
_GAINS = (
    ("embed.weight", 0.5),
    ("head.weight", _HEAD_GAIN),
    ("compressor.wgate.weight", 1.5),
    ("w2.weight", 1.8),
    ("wo_b.weight", 2.0),
)
_SHARP_NORMS = (".kv_norm.weight", ".compressor.norm.weight")
_FP8 = frozenset({"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3"})
_FLOAT32_LEAVES = frozenset({"attn_sink", "ape", "bias"})


def write_weights(path: Path, config: ModelConfig, *, seed: int, speaking: list[int]) -> None:
    """Write `path` (model.safetensors) with every tensor that the network of `config` has.

    seed      same seed, same file
    speaking  ids that may readily be chosen; other rows of the head are made small
    """
    with _one_thread():
        tensors: dict[str, Tensor] = {}
        for name, shape in tensor_shapes(config):
            tensor = torch.empty(shape, dtype=_dense_dtype(name))
            _fill(name, tensor, seed=seed, experts=config.n_routed_experts)
            if name == "head.weight":
                quiet = torch.ones(config.vocab_size, dtype=torch.bool)
                quiet[speaking] = False
                tensor[quiet] *= _QUIET_GAIN / _HEAD_GAIN
            tensors.update(_stored(name, tensor))
        cast(Any, safetensors.torch).save_file(tensors, path, metadata={"format": "pt"})


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: for tensors this small, threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the published name and dense shape of every tensor of `config`, draft heads excluded.

    Source: the tensor names of the published V4 files.
    """
    hidden, streams = config.hidden_size, config.hc_mult
    yield "embed.weight", (config.vocab_size, hidden)
    for layer, ratio in enumerate(config.compress_ratios):
        prefix = f"layers.{layer}."
        for part in ("attn", "ffn"):
            mixes = streams * (streams + 2)
            yield f"{prefix}{part}_norm.weight", (hidden,)
            yield f"{prefix}hc_{part}_fn", (mixes, streams * hidden)
            yield f"{prefix}hc_{part}_base", (mixes,)
            yield f"{prefix}hc_{part}_scale", (3,)
        yield from _attention_shapes(f"{prefix}attn.", config, ratio)
        yield from _expert_shapes(f"{prefix}ffn.", config, hashed=layer < config.num_hash_layers)
    yield "hc_head_fn", (streams, streams * hidden)
    yield "hc_head_base", (streams,)
    yield "hc_head_scale", (1,)
    yield "norm.weight", (hidden,)
    yield "head.weight", (config.vocab_size, hidden)


def _attention_shapes(
    prefix: str, config: ModelConfig, ratio: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, width = config.num_attention_heads, config.head_dim
    hidden, query_rank = config.hidden_size, config.q_lora_rank
    out_rank = config.o_groups * config.o_lora_rank
    yield f"{prefix}wq_a.weight", (query_rank, hidden)
    yield f"{prefix}q_norm.weight", (query_rank,)
    yield f"{prefix}wq_b.weight", (heads * width, query_rank)
    yield f"{prefix}wkv.weight", (width, hidden)
    yield f"{prefix}kv_norm.weight", (width,)
    yield f"{prefix}attn_sink", (heads,)
    yield f"{prefix}wo_a.weight", (out_rank, heads * width // config.o_groups)
    yield f"{prefix}wo_b.weight", (hidden, out_rank)
    if ratio:
        yield from _compressor_shapes(f"{prefix}compressor.", hidden, width, ratio)
    if ratio == 4:
        indexer, index_width = f"{prefix}indexer.", config.index_head_dim
        yield f"{indexer}wq_b.weight", (config.index_n_heads * index_width, query_rank)
        yield f"{indexer}weights_proj.weight", (config.index_n_heads, hidden)
        yield from _compressor_shapes(f"{indexer}compressor.", hidden, index_width, ratio)


def _compressor_shapes(
    prefix: str, hidden: int, width: int, ratio: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    # Ratio 4 overlaps its neighbour and keeps two series of channels.
    channels = 2 * width if ratio == 4 else width
    yield f"{prefix}wkv.weight", (channels, hidden)
    yield f"{prefix}wgate.weight", (channels, hidden)
    yield f"{prefix}norm.weight", (width,)
    yield f"{prefix}ape", (ratio, channels)


def _expert_shapes(
    prefix: str, config: ModelConfig, *, hashed: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    yield f"{prefix}gate.weight", (config.n_routed_experts, hidden)
    if hashed:
        yield f"{prefix}gate.tid2eid", (config.vocab_size, config.num_experts_per_tok)
    else:
        yield f"{prefix}gate.bias", (config.n_routed_experts,)
    experts = [f"experts.{number}" for number in range(config.n_routed_experts)]
    for expert in [*experts, "shared_experts"]:
        yield f"{prefix}{expert}.w1.weight", (inner, hidden)
        yield f"{prefix}{expert}.w2.weight", (hidden, inner)
        yield f"{prefix}{expert}.w3.weight", (inner, hidden)


def _dense_dtype(name: str) -> torch.dtype:
    return torch.int64 if name.endswith(".tid2eid") else torch.float32


def _fill(name: str, tensor: Tensor, *, seed: int, experts: int) -> None:
    gain = next((gain for end, gain in _GAINS if name.endswith(end)), 1.0)
    fill_random(name, tensor, seed=seed, experts=experts, gain=gain)
    if name.endswith(_SHARP_NORMS):
        tensor.fill_(2.0)
    elif name.endswith(".gate.bias"):
        # A stand-in should exercise the bias too: give every other expert a slight advantage.
        tensor[::2] += 0.1


def _stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return what the published format keeps of a tensor: itself, or codes and scales."""
    parts = name.split(".")
    quantised = len(parts) > 1 and parts[-2] in _FP8 and "compressor" not in parts
    if quantised:
        quantise = quantise_fp4 if "experts" in parts else quantise_fp8
        codes, scale = quantise(tensor)
        return {name: codes, name.removesuffix(".weight") + ".scale": scale}
    if parts[-1].startswith("hc_") or parts[-1] in _FLOAT32_LEAVES or parts[-1] == "tid2eid":
        return {name: tensor}
    return {name: tensor.to(torch.bfloat16)}
