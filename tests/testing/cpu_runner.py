"""A runner of the reference network on pools of a test."""

import torch

from layers.models.deepseek_v4.reference_network import DeepseekV4
from mem_cache.pools import KvPools
from runtime.executor.line_tables import LineTables
from runtime.executor.lines import Lines
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.sampler import Sampler


def cpu_runner(model: DeepseekV4, pools: KvPools, *, lines: int = 4) -> CpuModelRunner:
    """Return a runner for so many lines, each of which may have all pages."""
    device, tree = torch.device("cpu"), pools.spec.tree
    tables = LineTables(lines, pages=pools.sizes.full_pages, window_pages=tree.window_pages)
    last = torch.zeros(lines, dtype=torch.int64)
    return CpuModelRunner(
        model, pools, Lines(tables, Sampler(model.config.vocab_size, device), last)
    )
