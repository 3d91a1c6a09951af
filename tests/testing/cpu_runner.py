"""A small random network, and a runner of the reference network on pools of a test."""

import torch

from layers.models.contract import Network, Pools, Settings
from layers.models.deepseek_v4.model import ReferenceV4, V4Model
from layers.models.deepseek_v4.pools import KvPools
from layers.parallel.ranks import Ranks
from layers.weights.loading import fill_dummy
from runtime.executor.line_tables import LineTables
from runtime.executor.lines import Lines
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.sampler import Sampler
from tests.testing.direct import CPU
from tests.testing.tiny_model import CONFIG

SEED = 7


def tiny_network(*, draft_tokens: int = 0, ranks: Ranks | None = None) -> ReferenceV4:
    """Return a random network with every kind of layer, the same in every process."""
    network = V4Model(CONFIG).build(CPU, Settings(draft_tokens=draft_tokens), ranks)
    assert isinstance(network, ReferenceV4)
    fill_dummy(network, SEED)
    return network


def cpu_runner(
    network: ReferenceV4, pools: KvPools, *, lines: int = 4, ranks: Ranks | None = None
) -> CpuModelRunner:
    """Return a runner for so many lines, each of which may have all pages."""
    vocab, pages = network.config.vocab_size, pools.sizes.full_pages
    return network_runner(network, pools, vocab=vocab, pages=pages, lines=lines, ranks=ranks)


def network_runner(
    network: Network,
    pools: Pools,
    *,
    vocab: int,
    pages: int,
    lines: int = 4,
    ranks: Ranks | None = None,
) -> CpuModelRunner:
    """Return a runner of any family for so many lines, each of which may have so many pages."""
    tables = LineTables(lines, pages=pages, window_pages=network.cache.tree.window_pages)
    last = torch.zeros(lines, dtype=torch.int64)
    return CpuModelRunner(network, pools, Lines(tables, Sampler(vocab, CPU), last), ranks)
