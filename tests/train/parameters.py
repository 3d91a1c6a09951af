"""The first values of all parameters.

Block outputs start small against the streams; a stream mostly keeps itself, and each block reads
one of them more than the others. A fresh compressed record is near the mean of its tokens' keys,
in the space that the window's queries already know, so that what is learnt on the window carries
over to blocks.
"""

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig
from tests.testing.published_tensors import tensor_shapes
from tests.train.storage import is_trained

_EMBEDDING = 0.5
_READ, _READ_LESS, _KEEP = 1.0, -1.5, 3.0
_STREAM_SCALE = 0.1
_EARLIER_SERIES = -1.0
_SMALL_GATE = 0.1


def first_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Return all tensors by published name: float32, routing tables int64, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    named = {name: torch.zeros(shape) for name, shape in tensor_shapes(config).items()}
    for name, tensor in named.items():
        if name.endswith(".tid2eid"):
            named[name] = _table(config, generator)
        else:
            _fill(name, tensor, config, generator)
    for layer, ratio in enumerate(config.compress_ratios):
        if ratio:
            _like_the_window(named, f"layers.{layer}.attn.", ratio)
    return named


def split_parameters(
    named: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (what gradients move, what they do not)."""
    trained = {name: tensor for name, tensor in named.items() if is_trained(name)}
    return trained, {name: tensor for name, tensor in named.items() if name not in trained}


def _fill(name: str, out: Tensor, config: ModelConfig, generator: torch.Generator) -> None:
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("bias", "attn_sink", "ape"):
        return
    if "norm." in name:
        out.fill_(1.0)
    elif leaf.endswith("_scale"):
        out.fill_(_STREAM_SCALE if leaf != "hc_head_scale" else 1.0)
    elif leaf.endswith("_base"):
        _fill_base(name, out, config)
    elif name == "embed.weight":
        out.normal_(0.0, _EMBEDDING, generator=generator)
    else:
        gain = 1.0
        if name.endswith((".wo_b.weight", ".w2.weight")):
            gain = 1.0 / math.sqrt(2 * config.num_hidden_layers)
        elif name.endswith((".wgate.weight", "hc_head_fn")):
            gain = _SMALL_GATE
        elif name == "head.weight":
            gain = 0.5
        out.normal_(0.0, gain / math.sqrt(out.shape[-1]), generator=generator)


def _fill_base(name: str, out: Tensor, config: ModelConfig) -> None:
    """Fill the biases of stream mixing; block number k reads stream k most."""
    streams = config.hc_mult
    if name == "hc_head_base":
        return
    parts = name.split(".")
    block = 2 * int(parts[1]) + ("ffn" in parts[2])
    out[:streams] = _READ_LESS
    out[block % streams] = _READ
    out[2 * streams :] = _KEEP * torch.eye(streams).flatten()


def _like_the_window(named: dict[str, Tensor], prefix: str, ratio: int) -> None:
    compressor = f"{prefix}compressor."
    window, target = named[f"{prefix}wkv.weight"], named[f"{compressor}wkv.weight"]
    target.copy_(window.repeat(target.shape[0] // window.shape[0], 1))
    if ratio == 4:
        for part in (compressor, f"{prefix}indexer.compressor."):
            ape = named[f"{part}ape"]
            ape[:, : ape.shape[1] // 2] = _EARLIER_SERIES


def _table(config: ModelConfig, generator: torch.Generator) -> Tensor:
    """Return a routing table [vocab, k] of distinct experts, every expert as often as another.

    Every set of k experts is dealt out once before any comes again, in an order of chance.
    """
    sets = torch.tensor(
        list(itertools.combinations(range(config.n_routed_experts), config.num_experts_per_tok))
    )
    rounds = -(-config.vocab_size // len(sets))
    orders = [torch.randperm(len(sets), generator=generator) for _ in range(rounds)]
    return sets[torch.cat(orders)[: config.vocab_size]].clone()
