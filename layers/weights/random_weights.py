"""Random weights by published name, spread as a trained model's are.

A projection gets variance 1/fan_in, a norm 1, a router bias 0. Tiny or uniform weights would
send every token to the same experts, and whatever is measured on them would be flattered.
"""

import hashlib
import math

import torch
from torch import Tensor

from layers.weights.part import Part
from layers.weights.stacked import StackedWeight
from layers.weights.weight_target import WeightTarget

_TABLE_ROWS = 1 << 13
_EMBEDDINGS = ("embed.weight", "model.embed_tokens.weight")


def fill_random(
    name: str,
    out: Tensor | WeightTarget | StackedWeight | Part,
    *,
    seed: int,
    experts: int = 0,
    gain: float = 1.0,
) -> None:
    """Fill the weight `out` in place; its numbers depend on `name`, `seed` and its device only.

    A part of plain numbers has those of the whole weight there; one of quantised storage has its
    own, since the whole may be too large for a device.

    name     published tensor name; it decides the distribution
    out      any floating dtype; an integer dtype for routing tables; or the quantised storage of
             a projection
    experts  number of experts, for routing tables: a row holds distinct ones
    gain     factor on the spread of a projection
    """
    if isinstance(out, Part) and isinstance(out.target, Tensor):
        every = torch.empty(out.shape, dtype=out.target.dtype, device=out.device)
        fill_random(name, every, seed=seed, experts=experts, gain=gain)
        out.target.copy_(every[out.cut])
        return
    generator = _generator(name, seed, out.device)
    if isinstance(out, Part):
        generator = _generator(f"{name} {out.cut}", seed, out.device)
        # The fan-in is that of the whole weight.
        gain *= math.sqrt(out.target.shape[-1] / out.shape[-1])
        out = out.target
    leaf = name.rsplit(".", 1)[-1]
    if not isinstance(out, Tensor):
        out.fill_random(generator, gain)
    elif leaf == "tid2eid":
        _fill_table(out, experts, generator)
    elif leaf.startswith("hc_"):
        _fill_stream_mixer(leaf, out, generator)
    elif leaf in ("bias", "e_score_correction_bias"):
        out.zero_()
    elif "norm." in name:
        out.fill_(1.0)
    elif leaf in ("attn_sink", "sinks", "ape"):
        out.normal_(0.0, 0.5, generator=generator)
    else:
        fan_in = 1 if name in _EMBEDDINGS else out.shape[-1]
        out.normal_(0.0, gain / math.sqrt(fan_in), generator=generator)


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=device)
    # 63 bits: a signed seed is what every device's generator takes.
    return generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _fill_table(out: Tensor, experts: int, generator: torch.Generator) -> None:
    """Give every row (token id) of `out` [vocab, k] k distinct experts."""
    for first in range(0, out.shape[0], _TABLE_ROWS):
        part = out[first : first + _TABLE_ROWS]
        score = torch.rand(len(part), experts, generator=generator, device=out.device)
        part.copy_(score.topk(part.shape[1], dim=-1).indices)


def _fill_stream_mixer(leaf: str, out: Tensor, generator: torch.Generator) -> None:
    """Fill one of hc_*_fn [m, n*d], hc_*_scale [3 or 1], hc_*_base [m], m = n*(n+2) or n.

    The last n*n entries of a base of n*(n+2) mix streams with one another: their diagonal is
    raised, so that each stream mostly stays itself.
    """
    if leaf.endswith("_fn"):
        out.normal_(0.0, 1.0 / math.sqrt(out.shape[-1]), generator=generator)
    elif leaf.endswith("_scale"):
        out.fill_(1.0)
    else:
        out.zero_()
        streams = math.isqrt(out.shape[0] + 1) - 1
        if leaf != "hc_head_base":
            diagonal = torch.eye(streams, dtype=out.dtype, device=out.device)
            out[2 * streams :].copy_(1.5 * diagonal.flatten())
