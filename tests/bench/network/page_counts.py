"""Bytes and operations of steps of networks of pages and windows, from their configurations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from layers.models.gpt_oss.config import GptOssConfig
from layers.models.gpt_oss.model import CudaGptOss
from layers.models.gqa.config import GqaConfig
from layers.models.gqa.model import CudaGqa
from layers.models.mla.config import IndexFields, MlaConfig
from layers.models.mla.model import CudaMla, CudaSparseMla
from layers.models.mla.sparse_pools import PAGE_KEYS
from layers.models.plain_model import PAGE_TOKENS
from layers.weights.part import Part

__all__ = ["PageNetwork", "prompt_flops", "step_bytes"]

PageNetwork = CudaGqa | CudaMla | CudaSparseMla | CudaGptOss
PageConfig = GqaConfig | MlaConfig | GptOssConfig


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of weights, or multiplications.

    attention  of a layer's attention, which each token passes
    pair       multiplications of a query and a key, of all heads of a layer
    rated      of an indexer's query and key, of all its heads
    dense      of a feed-forward block without experts
    expert     of one routed expert
    chosen     routed experts of a token
    others     of a layer with experts, which each token passes: the gate, shared experts
    mixed      layers with experts
    sliding    layers that attend the last `window` tokens
    """

    attention: int
    pair: int
    dense: int = 0
    expert: int = 0
    chosen: int = 0
    others: int = 0
    mixed: int = 0
    sliding: int = 0
    window: int = 0
    rated: int = 0


def step_bytes(network: PageNetwork, rows: int, context: int, routed: int) -> int:
    """Return the bytes that a decode step reads.

    routed  distinct experts of all layers together
    """
    config, cache = network.config, network.cache
    tied = not isinstance(config, MlaConfig) and config.tied
    total = rows * _cached_bytes(network, context)
    seen = min(context, cache.tree.window)
    total += rows * seen * cache.swa_page_bytes // cache.swa_page_size
    for name, stored in network.named_weights():
        target = stored.target if isinstance(stored, Part) else stored
        if ".experts." not in name and ("embed_tokens" not in name or tied):
            assert isinstance(target, Tensor)
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


def _chosen(config: PageConfig, tokens: int) -> int:
    """Return how many of so many positions a token attends."""
    index = config.index if isinstance(config, MlaConfig) else None
    return tokens if index is None else min(tokens, index.chosen)


def prompt_flops(config: PageConfig, tokens: int) -> float:
    """Return the operations of the products of a prompt, and of half of its attention's square.

    Attention of latents counts as the fewest there are: keys and values are made, once each.
    """
    of = _numbers(config)
    numbers = config.num_layers * of.attention + (config.num_layers - of.mixed) * of.dense
    numbers += of.mixed * (of.chosen * of.expert + of.others)
    # Up to `chosen` tokens attend all before them, the others that many.
    chosen = _chosen(config, tokens)
    pairs = (config.num_layers - of.sliding) * of.pair * chosen * (tokens - chosen / 2)
    pairs += config.num_layers * of.rated * tokens**2 / 2
    pairs += of.sliding * of.pair * tokens * min(of.window, tokens // 2)
    head = config.hidden_size * config.vocab_size
    return 2.0 * (tokens * numbers + pairs + head)


def _numbers(config: PageConfig) -> _Numbers:
    return _of_latents(config) if isinstance(config, MlaConfig) else _of_groups(config)


def _of_groups(config: GqaConfig | GptOssConfig) -> _Numbers:
    width, experts = config.hidden_size, config.experts
    attention = 2 * config.head_dim * width * (config.heads + config.key_heads)
    pair = 2 * config.heads * config.head_dim
    dense = 3 * width * config.inner if isinstance(config, GqaConfig) else 0
    if experts is None:
        return _Numbers(attention, pair, dense)
    mixture = 3 * width * experts.inner, experts.chosen, width * experts.count
    if isinstance(config, GptOssConfig):
        sliding = sum(config.sliding), config.window
        return _Numbers(attention, pair, dense, *mixture, config.num_layers, *sliding)
    mixed = config.num_layers if config.experts is None else len(config.experts.layers)
    return _Numbers(attention, pair, dense, *mixture, mixed)


def _of_latents(config: MlaConfig) -> _Numbers:
    width, heads, experts = config.hidden_size, config.heads, config.experts
    query, rank = heads.plain + heads.turned, heads.q_rank
    queries = width * heads.count * query
    if rank is not None:
        queries = rank * (width + heads.count * query)
    made = heads.latent * heads.count * (heads.plain + heads.value)
    attention = queries + width * (heads.latent + heads.turned) + made
    attention += heads.count * heads.value * width
    pair, dense, rated = heads.count * (query + heads.value), 3 * width * config.inner, 0
    if config.index is not None:
        attention += _index_numbers(config, config.index)
        rated = config.index.heads * config.index.width
    if experts is None:
        return _Numbers(attention, pair, dense, rated=rated)
    return _Numbers(
        attention,
        pair,
        dense,
        expert=3 * width * experts.inner,
        chosen=experts.chosen,
        others=width * (experts.count + 3 * experts.shared),
        mixed=len(experts.layers),
        rated=rated,
    )


def _index_numbers(config: MlaConfig, index: IndexFields) -> int:
    rank = config.heads.q_rank
    assert rank is not None, "the configuration was checked"
    return rank * index.heads * index.width + config.hidden_size * (index.width + index.heads)
