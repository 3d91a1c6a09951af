"""Loads the network on a CUDA device: weights, then what steps take, then pools, then graphs.

What steps take is measured by running the largest ones there can be, on pools just large enough
for them. So a server that does not fit says so before it serves, and none runs out of memory later.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import cast

import torch

from jit_kernels.cuda_library import compile_all
from jit_kernels.kernels_ahead import name_folder
from jit_kernels.vendor_products import compile_products
from layers.models.contract import CudaNetwork, Model, Pools, Settings
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.pieces import PIECE_SIZES
from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes
from runtime.errors import ConfigError
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.decode_graphs import Capture, CudaCapture, graph_sizes
from runtime.executor.device_memory import (
    ACTIVATIONS,
    GRAPHS,
    OTHERS,
    POOLS,
    WEIGHTS,
    CudaMemory,
    DeviceMemory,
    MemoryParts,
    MemoryUse,
)
from runtime.executor.dry_run import Extent
from runtime.executor.lines import Lines
from runtime.executor.loaded_model import LoadedModel, fill_weights, line_tables
from runtime.executor.memory_budget import (
    context_limit,
    context_tokens,
    pool_shares,
    pool_sizes,
)
from runtime.executor.record_watch import RecordWatch
from runtime.executor.sampler import Sampler
from runtime.executor.warm_up import WarmUp
from runtime.wire.loaded import Loaded

__all__ = ["CudaLoader", "Device", "load_on_cuda"]

logger = logging.getLogger("umbra.scheduler")

# Weights may take so much of the limit in the forms that are fastest; beyond it in fewer forms.
BOTH_FORMS_SHARE = 0.6
_FLOAT_BYTES = 4
# What makes each part of the device's memory smaller; a network may know better for its weights.
_ADVICE = {
    WEIGHTS: "use a smaller model, or a device with more memory",
    ACTIVATIONS: "lower --chunked-prefill-size, --max-running-requests or --context-length",
    GRAPHS: "give fewer --cuda-graph-bs, or --disable-cuda-graph",
    POOLS: "lower --mem-fraction-static, --kv-cache-bytes or the flag of a pool",
    OTHERS: "end the other processes on the device",
}


@dataclass(frozen=True, slots=True)
class Device:
    """A device, or what stands in for one.

    capture  makes a capture whose graphs share memory
    compile  compiles what kernels of CUDA C++ need; returns what went wrong
    ahead    compiles what vendors' libraries need for products of so many rows, until the event is
             set; likewise
    """

    device: torch.device
    name: str
    memory: DeviceMemory
    capture: Callable[[], Capture]
    compile: Callable[[], list[str]]
    ahead: Callable[[Sequence[int], Event], list[str]]


def load_on_cuda(
    config: ServerConfig,
    folder: Path,
    model: Model,
    *,
    settings: Settings,
    given: DeviceSizes,
    device: torch.device,
    logit_rows: int,
    ranks: Ranks,
) -> LoadedModel:
    """Load the network of `folder`. Raises ConfigError, ConfigFault, WeightError.

    given       what flags say, and the defaults of CUDA
    logit_rows  prompt positions whose logits a step may compute
    """
    name = torch.cuda.get_device_name(device)
    # Of several ranks one compiles a kernel. Only here is Triton sure to be installed.
    from jit_kernels.triton_cache import use_one_compiler

    name_folder()
    use_one_compiler()

    def ahead(rows: Sequence[int], stop: Event) -> list[str]:
        return compile_products(rows, device, stop=stop, tell=logger.info)

    place = Device(device, name, CudaMemory(device), CudaCapture, compile_all, ahead)
    loader = CudaLoader(config, model, settings=settings, given=given, place=place, ranks=ranks)
    return loader.load(folder, logit_rows=logit_rows)


class CudaLoader:
    """Brings one network to one device, step by step."""

    def __init__(
        self,
        config: ServerConfig,
        model: Model,
        *,
        settings: Settings,
        given: DeviceSizes,
        place: Device,
        ranks: Ranks | None = None,
    ) -> None:
        """Take the settings. Raises ConfigError where --cuda-graph-bs leaves no size."""
        self._config, self._model, self._settings = config, model, settings
        self._given, self._place, self._ranks = given, place, ranks or OneRank()
        # One for measurement and service: what its tables take is measured as a part of all else.
        self._sampler = Sampler(model.facts.vocab_size, place.device)
        rows = given.max_running_requests
        wanted = () if config.disable_cuda_graph else graph_sizes(config.cuda_graph_bs, rows)
        if not wanted and not config.disable_cuda_graph:
            raise ConfigError(
                f"--cuda-graph-bs has no size up to --max-running-requests {rows}; "
                "--disable-cuda-graph does without graphs"
            )
        self._graph_sizes = wanted

    def load(self, folder: Path, *, logit_rows: int) -> LoadedModel:
        """Load weights, measure, make pools, capture graphs."""
        memory, config = self._place.memory, self._config
        limit = int(config.mem_fraction_static * memory.total)
        room = int(BOTH_FORMS_SHARE * limit) * self._ranks.shares.world
        settings = dataclasses.replace(self._settings, weight_bytes=room)
        others, advice = memory.used(), {**_ADVICE}
        advice[WEIGHTS] = self._model.smaller(settings) or advice[WEIGHTS]
        parts = MemoryParts(memory.total, advice, others=others)
        with parts.fitting(WEIGHTS):
            # What a model builds on a CUDA device is one.
            network = cast(
                CudaNetwork, self._model.build(self._place.device, settings, self._ranks)
            )
            warm_up = self._warm_up(network, logit_rows)
            with self._compiled_beside(warm_up.product_rows()):
                fill_weights(network, config, folder, self._ranks.shares)
        parts.note(WEIGHTS, memory.used() - others)
        extent = warm_up.extent
        use = self._measure(network, warm_up, parts, others=others, limit=limit)
        budget = use.pool_budget(self._given.kv_cache_bytes, advice)
        # All ranks have as many pages as the one with least room.
        given = dataclasses.replace(self._given, kv_cache_bytes=self._ranks.least(budget))
        cache = network.cache
        sizes = pool_sizes(config, cache, given)
        context = context_tokens(config, self._model.facts.context_tokens, cache.tree, sizes)
        with parts.fitting(POOLS, sum(pool_shares(cache, sizes).values())):
            runner, pools = self._runner(network, sizes, context)
        parts.note(POOLS, pools.bytes)
        if self._graph_sizes:
            listed = ", ".join(map(str, self._graph_sizes))
            logger.info("Capture decode steps of %s rows as CUDA graphs", listed)
        with parts.fitting(GRAPHS):
            runner.capture(self._graph_sizes, self._place.capture())
        logger.info("Memory in %s", use.told(pools.bytes))
        told = Loaded(
            cache=cache,
            sizes=sizes,
            context_tokens=context,
            pool_bytes=pools.bytes,
            graphs=runner.has_graphs,
            in_flight=not config.disable_overlap_schedule,
            facts={
                "device": self._place.device.type,
                "device_name": self._place.name,
                **network.facts,
                **use.facts(),
            },
            step_context=extent.step_context,
            step_samples=extent.rows,
            memory=[
                use.of_rank(self._ranks.shares.rank, pools.bytes, free=memory.total - memory.used())
            ],
        )
        return LoadedModel(runner, told)

    @contextmanager
    def _compiled_beside(self, rows: Sequence[int]) -> Iterator[None]:
        """Have kernels compiled beside the block, if they are not yet."""
        stop, place = Event(), self._place
        if self._ranks.shares.rank:
            # One rank compiles for all: the others find it done when they meet. What is left are
            # products of sizes that only this rank has.
            yield
            self._ranks.least(0)
            _warn(place.ahead(rows, stop))
            return
        with ThreadPoolExecutor(2) as threads:
            try:
                jobs = [threads.submit(place.compile), threads.submit(place.ahead, rows, stop)]
                yield
                faults = [fault for job in jobs for fault in job.result()]
            except BaseException:
                stop.set()
                raise
        _warn(faults)
        self._ranks.least(0)

    def _warm_up(self, network: CudaNetwork, logit_rows: int) -> WarmUp:
        own_rows = self._ranks.shares.attention == "data"
        extent = Extent(
            rows=self._given.max_running_requests,
            chunk=self._given.chunked_prefill_size,
            context=context_limit(self._config, self._model.facts.context_tokens),
            logit_rows=logit_rows,
            vocab=self._model.facts.vocab_size,
            meeting=self._ranks.shares.world if own_rows else 1,
        )
        # Ranks with rows of their own have steps of unequal sizes, which are never in pieces.
        in_pieces = network.piecewise and self._graph_sizes and not own_rows
        longest = extent.chunk if in_pieces else 0
        pieces = [size for size in PIECE_SIZES if size <= longest]
        return WarmUp(extent, network.cache.tree, self._graph_sizes, pieces)

    def _measure(
        self,
        network: CudaNetwork,
        warm_up: WarmUp,
        parts: MemoryParts,
        *,
        others: int,
        limit: int,
    ) -> MemoryUse:
        """Run the largest steps, and say what everything but the pools takes."""
        memory = self._place.memory
        activations, graphs = self._measure_steps(network, warm_up, parts)
        with parts.fitting(GRAPHS):
            pieces = self._capture_pieces(network, warm_up.pieces)
        # What was made for the measurement is gone by now; the pieces stay.
        weights = memory.used() - others - pieces
        return MemoryUse(
            total=memory.total,
            limit=limit,
            others=others,
            weights=weights,
            activations=activations,
            graphs=graphs + pieces,
        )

    def _measure_steps(
        self, network: CudaNetwork, warm_up: WarmUp, parts: MemoryParts
    ) -> tuple[int, int]:
        """Return the bytes of activations and of graphs."""
        extent, tree = warm_up.extent, warm_up.tree
        with parts.fitting(ACTIVATIONS):
            runner, pools = self._runner(network, extent.pools(tree), extent.context)
            # Whatever memory held before, a step may not stumble over it.
            for tensor in pools.tensors().values():
                tensor.zero_()
            # Once to compile, tune and load what is at first use.
            self._run(warm_up, runner)
            activations = self._place.memory.peak_of(lambda: _run(runner, extent, tree))
            self._sampler.forget_lines()
        with parts.fitting(GRAPHS):
            return activations, self._graph_bytes(runner)

    def _capture_pieces(self, network: CudaNetwork, sizes: Sequence[int]) -> int:
        """Capture what small prefill steps replay, which knows no pools; return its bytes."""
        if not sizes:
            return 0
        listed = ", ".join(map(str, sizes))
        logger.info("Capture parts of prefill steps of %s tokens as CUDA graphs", listed)
        before = self._place.memory.used()
        network.capture_prefill(sizes, self._place.capture())
        return self._place.memory.used() - before

    def _run(self, warm_up: WarmUp, runner: CudaModelRunner) -> None:
        """Meet every size that there may be: a kernel that is compiled in a step holds it up."""
        logger.info("Run all sizes of products and steps, and compile what is not yet compiled")
        began = time.monotonic()
        warm_up.run(runner, self._place.device)
        logger.info("Ran them within %.0f s", time.monotonic() - began)

    def _graph_bytes(self, runner: CudaModelRunner) -> int:
        """Return what all graphs take: the largest, and each further one as the smallest does.

        Each has logits of its own; all else of a smaller one lies in the memory of the largest.
        """
        sizes, memory = self._graph_sizes, self._place.memory
        if not sizes:
            return 0
        taken: list[int] = []
        for some in (sizes[-1:], (sizes[0], sizes[-1])):
            before = memory.used()
            runner.capture(some, self._place.capture())
            taken.append(memory.used() - before)
            runner.capture((), self._place.capture())
        one, two = taken
        logits = sum(sizes[:-1]) * self._model.facts.vocab_size * _FLOAT_BYTES
        return one + max(0, two - one) * (len(sizes) - 1) + logits

    def _runner(
        self, network: CudaNetwork, sizes: PoolSizes, context: int
    ) -> tuple[CudaModelRunner, Pools]:
        device, tree = self._place.device, network.cache.tree
        rows = self._given.max_running_requests
        pools = network.pools(sizes)
        buffers = DecodeBuffers(
            rows,
            pages=div_ceil(context, tree.page_size),
            window_pages=tree.window_pages,
            device=device,
        )
        lines = Lines(
            line_tables(tree, rows=rows, context=context),
            self._sampler,
            buffers.last[:rows],
        )
        watch = RecordWatch(pools.unit_views(), tree) if self._config.check_every_step else None
        runner = CudaModelRunner(network, pools, lines, buffers, self._ranks, watch=watch)
        return runner, pools


def _run(runner: CudaModelRunner, extent: Extent, tree: TreeSpec) -> None:
    for plan in extent.steps(tree):
        runner.run(plan)


def _warn(faults: Sequence[str]) -> None:
    for fault in faults:
        logger.warning("%s", fault)
