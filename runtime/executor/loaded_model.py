"""What a scheduler is told of a network that was loaded: its runner, its pools, its facts."""

from dataclasses import dataclass
from pathlib import Path

import torch

from layers.models.contract import Model, Settings
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Shares
from layers.weights.loading import NamedWeights, fill_dummy, load_weights
from mem_cache.spec import TreeSpec, div_ceil
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes
from runtime.errors import MemoryShortage
from runtime.executor.host_memory import free_host_bytes, total_host_bytes, weight_bytes
from runtime.executor.interface import Executor, JointExecutor
from runtime.executor.line_tables import LineTables
from runtime.executor.lines import Lines
from runtime.executor.memory_budget import context_tokens, pool_shares, pool_sizes
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.record_watch import RecordWatch
from runtime.executor.sampler import Sampler
from runtime.rank_memory import RankMemory
from runtime.wire.loaded import Loaded

__all__ = ["LoadedModel", "fill_weights", "line_tables", "load_on_cpu"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network that is ready for steps, and what runs them.

    runner  runs steps; where ranks have rows of their own that is the executor of the first one
    joint   launches their steps; None: there is one executor
    """

    runner: Executor
    told: Loaded
    joint: JointExecutor | None = None


def fill_weights(network: NamedWeights, config: ServerConfig, folder: Path, shares: Shares) -> None:
    """Fill a network's weights as --load-format says. Raises WeightError.

    shares  of the ranks that do; one shows a bar, if log lines are text
    """
    if config.load_format == "dummy":
        fill_dummy(network, config.random_seed or 0)
    else:
        bar = shares.rank == 0 and config.log_format == "text"
        load_weights(network, folder, progress=bar, turn=(shares.rank, shares.world))


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
    ranks: Ranks,
) -> LoadedModel:
    """Load the network and make its pools. Raises ConfigError, ConfigFault, WeightError.

    given  what flags say, and the CPU's defaults
    """
    device = torch.device("cpu")
    try:
        network = model.build(device, settings, ranks)
    except RuntimeError as fault:  # what torch raises where the host's memory ends
        if "can't allocate memory" not in str(fault):
            raise
        raise MemoryShortage("the weights take more memory than this machine gives") from fault
    cache = network.cache
    sizes = pool_sizes(config, cache, given)
    context = context_tokens(config, model.facts.context_tokens, cache.tree, sizes)
    fill_weights(network, config, folder, ranks.shares)
    try:
        pools = network.pools(sizes)
    except RuntimeError as fault:  # what torch raises where the host's memory ends
        wanted = sum(pool_shares(cache, sizes).values())
        raise MemoryShortage(
            f"the KV pools take {wanted} bytes, more than this machine gives: lower "
            "--kv-cache-bytes, or the flags of the pools"
        ) from fault
    rows = given.max_running_requests
    lines = Lines(
        line_tables(cache.tree, rows=rows, context=context),
        Sampler(model.facts.vocab_size, device),
        torch.zeros(rows, dtype=torch.int64),
    )
    told = Loaded(
        cache=cache,
        sizes=sizes,
        context_tokens=context,
        pool_bytes=pools.bytes,
        graphs=False,
        in_flight=False,
        facts={"device": device.type, **network.facts},
        memory=[
            RankMemory(
                ranks.shares.rank,
                weight_bytes=weight_bytes(network),
                pool_bytes=pools.bytes,
                activation_bytes=0,
                graph_bytes=0,
                total_bytes=total_host_bytes(),
                free_bytes=free_host_bytes(),
            )
        ],
    )
    watch = RecordWatch(pools.unit_views(), cache.tree) if config.check_every_step else None
    return LoadedModel(CpuModelRunner(network, pools, lines, ranks, watch=watch), told)
