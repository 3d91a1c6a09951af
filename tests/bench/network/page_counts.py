"""Bytes and operations of steps of networks of pages alone, from their configurations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from layers.models.gqa.config import GqaConfig
from layers.models.gqa.model import CudaGqa
from layers.models.mla.config import MlaConfig
from layers.models.mla.model import CudaMla
from layers.models.plain_model import PAGE_TOKENS
from layers.weights.part import Part

__all__ = ["PageNetwork", "prompt_flops", "step_bytes"]

PageNetwork = CudaGqa | CudaMla


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of weights, or multiplications.

    attention  of a layer's attention, which each token passes
    pair       multiplications of a query and a key, of all heads of a layer
    expert     of one routed expert
    chosen     routed experts of a token
    others     of a layer with experts, which each token passes: the gate, shared experts
    mixed      layers with experts
    """

    attention: int
    pair: int
    expert: int = 0
    chosen: int = 0
    others: int = 0
    mixed: int = 0


def step_bytes(network: PageNetwork, rows: int, context: int, routed: int) -> int:
    """Return the bytes that a decode step reads.

    routed  distinct experts of all layers together
    """
    config = network.config
    tied = isinstance(config, GqaConfig) and config.tied
    total = rows * context * network.cache.full_page_bytes // PAGE_TOKENS
    for name, stored in network.named_weights():
        target = stored.target if isinstance(stored, Part) else stored
        assert isinstance(target, Tensor)
        if ".experts." not in name and ("embed_tokens" not in name or tied):
            total += target.nbytes
    return total + routed * _numbers(config).expert * torch.bfloat16.itemsize


def prompt_flops(config: GqaConfig | MlaConfig, tokens: int) -> float:
    """Return the operations of the products of a prompt, and of half of its attention's square.

    Attention of latents counts as the fewest there are: keys and values are made, once each.
    """
    of = _numbers(config)
    dense = 3 * config.hidden_size * config.inner
    numbers = config.num_layers * of.attention + (config.num_layers - of.mixed) * dense
    numbers += of.mixed * (of.chosen * of.expert + of.others)
    pairs = config.num_layers * of.pair * tokens // 2
    head = config.hidden_size * config.vocab_size
    return 2.0 * (tokens * (numbers + pairs) + head)


def _numbers(config: GqaConfig | MlaConfig) -> _Numbers:
    return _of_groups(config) if isinstance(config, GqaConfig) else _of_latents(config)


def _of_groups(config: GqaConfig) -> _Numbers:
    width, experts = config.hidden_size, config.experts
    attention = 2 * config.head_dim * width * (config.heads + config.key_heads)
    pair = 2 * config.heads * config.head_dim
    if experts is None:
        return _Numbers(attention, pair)
    expert = 3 * width * experts.inner
    return _Numbers(
        attention, pair, expert, experts.chosen, width * experts.count, len(experts.layers)
    )


def _of_latents(config: MlaConfig) -> _Numbers:
    width, heads, experts = config.hidden_size, config.heads, config.experts
    query, rank = heads.plain + heads.turned, heads.q_rank
    queries = width * heads.count * query
    if rank is not None:
        queries = rank * (width + heads.count * query)
    made = heads.latent * heads.count * (heads.plain + heads.value)
    attention = queries + width * (heads.latent + heads.turned) + made
    attention += heads.count * heads.value * width
    pair = heads.count * (query + heads.value)
    if experts is None:
        return _Numbers(attention, pair)
    expert, others = 3 * width * experts.inner, width * (experts.count + 3 * experts.shared)
    return _Numbers(attention, pair, expert, experts.chosen, others, len(experts.layers))
