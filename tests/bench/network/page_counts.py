"""Bytes and operations of steps of networks of pages alone, from their configurations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from layers.models.gqa.config import GqaConfig
from layers.models.gqa.model import CudaGqa
from layers.models.mla.config import IndexFields, MlaConfig
from layers.models.mla.model import CudaMla, CudaSparseMla
from layers.models.mla.sparse_pools import PAGE_KEYS
from layers.models.plain_model import PAGE_TOKENS
from layers.weights.part import Part

__all__ = ["PageNetwork", "prompt_flops", "step_bytes"]

PageNetwork = CudaGqa | CudaMla | CudaSparseMla


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of weights, or multiplications.

    attention  of a layer's attention, which each token passes
    pair       multiplications of a query and a key, of all heads of a layer
    rated      of an indexer's query and key, of all its heads
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
    rated: int = 0


def step_bytes(network: PageNetwork, rows: int, context: int, routed: int) -> int:
    """Return the bytes that a decode step reads.

    routed  distinct experts of all layers together
    """
    config = network.config
    tied = isinstance(config, GqaConfig) and config.tied
    total = rows * _cached_bytes(network, context)
    for name, stored in network.named_weights():
        target = stored.target if isinstance(stored, Part) else stored
        assert isinstance(target, Tensor)
        if ".experts." not in name and ("embed_tokens" not in name or tied):
            total += target.nbytes
    return total + routed * _numbers(config).expert * torch.bfloat16.itemsize


def _cached_bytes(network: PageNetwork, context: int) -> int:
    """Return the bytes that a row reads of what is cached: of records those that it attends."""
    config, page = network.config, network.cache.full_page_bytes
    chosen = _chosen(config, context)
    if chosen == context:
        return context * page // PAGE_TOKENS
    assert isinstance(network, CudaSparseMla)
    each = network.page_layout
    read = context * each.keys.page_bytes // PAGE_KEYS + chosen * each.record_bytes
    return network.config.num_layers * read


def _chosen(config: GqaConfig | MlaConfig, tokens: int) -> int:
    """Return how many of so many positions a token attends."""
    index = config.index if isinstance(config, MlaConfig) else None
    return tokens if index is None else min(tokens, index.chosen)


def prompt_flops(config: GqaConfig | MlaConfig, tokens: int) -> float:
    """Return the operations of the products of a prompt, and of half of its attention's square.

    Attention of latents counts as the fewest there are: keys and values are made, once each.
    """
    of = _numbers(config)
    dense = 3 * config.hidden_size * config.inner
    numbers = config.num_layers * of.attention + (config.num_layers - of.mixed) * dense
    numbers += of.mixed * (of.chosen * of.expert + of.others)
    # Up to `chosen` tokens attend all before them, the others that many.
    chosen = _chosen(config, tokens)
    pairs = of.pair * chosen * (tokens - chosen / 2) + of.rated * tokens**2 / 2
    head = config.hidden_size * config.vocab_size
    return 2.0 * (tokens * numbers + config.num_layers * pairs + head)


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
    pair, rated = heads.count * (query + heads.value), 0
    if config.index is not None:
        attention += _index_numbers(config, config.index)
        rated = config.index.heads * config.index.width
    if experts is None:
        return _Numbers(attention, pair, rated=rated)
    expert, others = 3 * width * experts.inner, width * (experts.count + 3 * experts.shared)
    return _Numbers(attention, pair, expert, experts.chosen, others, len(experts.layers), rated)


def _index_numbers(config: MlaConfig, index: IndexFields) -> int:
    rank = config.heads.q_rank
    assert rank is not None, "the configuration was checked"
    return rank * index.heads * index.width + config.hidden_size * (index.width + index.heads)
