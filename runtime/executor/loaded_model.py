"""What a scheduler is told of a network that was loaded: its runner, its pools, its facts."""

from dataclasses import dataclass
from pathlib import Path

import torch

from layers.models.contract import Model, Settings
from layers.weights.loading import NamedWeights, fill_dummy, load_weights
from mem_cache.spec import CacheSpec, PoolSizes, TreeSpec, div_ceil
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes
from runtime.errors import ConfigError
from runtime.executor.interface import Executor
from runtime.executor.line_tables import LineTables
from runtime.executor.lines import Lines
from runtime.executor.memory_budget import context_tokens, pool_shares, pool_sizes
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.sampler import Sampler

__all__ = ["Facts", "LoadedModel", "fill_weights", "line_tables", "load_on_cpu"]

Facts = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network on a device, ready for steps.

    context_tokens  longest prompt plus output
    pool_bytes      of all pools, dummies included
    graphs          decode steps are replayed as CUDA graphs
    in_flight       a step may be launched before the one before it is settled
    step_context    tokens before and in the chunks of a prefill step of several rows that memory
                    was measured for; None: it needs no bound
    step_samples    likewise, rows that a prefill step samples
    facts           of the device and the network, for /server_info
    """

    runner: Executor
    cache: CacheSpec
    sizes: PoolSizes
    context_tokens: int
    pool_bytes: int
    graphs: bool
    in_flight: bool
    facts: Facts
    step_context: int | None = None
    step_samples: int | None = None


def fill_weights(network: NamedWeights, config: ServerConfig, folder: Path) -> None:
    """Fill a network's weights as --load-format says. Raises WeightError."""
    if config.load_format == "dummy":
        fill_dummy(network, config.random_seed or 0)
    else:
        load_weights(network, folder)


def line_tables(tree: TreeSpec, *, rows: int, context: int) -> LineTables:
    """Return tables of `rows` lines of at most `context` tokens."""
    pages = div_ceil(context, tree.page_size)
    return LineTables(rows, pages=pages, window_pages=tree.window_pages)


def load_on_cpu(
    config: ServerConfig,
    folder: Path,
    model: Model,
    *,
    settings: Settings,
    given: DeviceSizes,
) -> LoadedModel:
    """Load the network and make its pools. Raises ConfigError, ConfigFault, WeightError.

    given  what flags say, and the CPU's defaults
    """
    device = torch.device("cpu")
    network = model.build(device, settings)
    cache = network.cache
    sizes = pool_sizes(config, cache, given)
    context = context_tokens(config, model.facts.context_tokens, cache.tree, sizes)
    fill_weights(network, config, folder)
    try:
        pools = network.pools(sizes)
    except RuntimeError as fault:  # what torch raises where the host's memory ends
        wanted = sum(pool_shares(cache, sizes).values())
        raise ConfigError(
            f"the KV pools take {wanted} bytes, more than this machine gives: lower "
            "--kv-cache-bytes, or the flags of the pools"
        ) from fault
    rows = given.max_running_requests
    lines = Lines(
        line_tables(cache.tree, rows=rows, context=context),
        Sampler(model.facts.vocab_size, device),
        torch.zeros(rows, dtype=torch.int64),
    )
    return LoadedModel(
        runner=CpuModelRunner(network, pools, lines),
        cache=cache,
        sizes=sizes,
        context_tokens=context,
        pool_bytes=pools.bytes,
        graphs=False,
        in_flight=False,
        facts={"device": device.type, **network.facts},
    )
