"""The network of CUDA devices with its runner: on one where there is one, else on the CPU.

On the CPU a graph is stood in for by running the step again into the same output.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import cast

import torch
from torch import Tensor

from jit_kernels.cuda_library import compile_all
from layers.experts.contract import ExpertForm
from layers.models.contract import CudaNetwork, Pools, Settings
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.expert_form import expert_form
from layers.models.deepseek_v4.model import QuantisedV4, V4Model
from layers.parallel.ranks import Ranks
from layers.weights.loading import load_weights
from mem_cache.spec import PoolSizes
from runtime.executor.cuda_model import Device
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.decode_graphs import Capture, Captured, CudaCapture
from runtime.executor.device_memory import CudaMemory
from runtime.executor.line_tables import LineTables
from runtime.executor.lines import Lines
from runtime.executor.sampler import Sampler
from tests.testing.stand_in.folder import write_stand_in

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
SIZES = PoolSizes(full_pages=24, swa_pages=96, states=24)
ROWS, PAGES = 4, 8
# Every kind of attention, and of both kinds of routing; few index heads and iterations.
SHORT = {
    "num_hidden_layers": 3,
    "compress_ratios": [0, 128, 4],
    "num_hash_layers": 1,
    "index_n_heads": 8,
    "hc_sinkhorn_iters": 4,
}


def rerun(run: Callable[[], Tensor]) -> Captured:
    """Return what behaves like a graph of `run`: same inputs' places, same output's place."""
    output = run()

    def replay() -> None:
        output.copy_(run())

    return Captured(replay, output)


def new_capture() -> Capture:
    """Return a capture for DEVICE."""
    return CudaCapture() if DEVICE.type == "cuda" else rerun


class FakeMemory:
    """Memory of a device that has `total` bytes; every step takes `peak` of them.

    seen  bytes in use at each question, one after the other; the last one goes on
    """

    def __init__(self, total: int, *, peak: int = 0, seen: tuple[int, ...] = (0,)) -> None:
        self.total = total
        self.runs = 0
        self._peak = peak
        self._seen = list(seen)

    def used(self) -> int:
        """Return the next number."""
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]

    def peak_of(self, run: Callable[[], None]) -> int:
        """Run it."""
        run()
        self.runs += 1
        return self._peak


def nothing_ahead(rows: Sequence[int], stop: Event) -> list[str]:
    """Leave what vendors' libraries compile to the first use."""
    return []


def a_device(memory: FakeMemory | None = None) -> Device:
    """Return DEVICE, or what stands in for one."""
    if DEVICE.type == "cuda":
        name = torch.cuda.get_device_name(DEVICE)
        real = memory or CudaMemory(DEVICE)
        return Device(DEVICE, name, real, CudaCapture, compile_all, nothing_ahead)
    fake = memory or FakeMemory(1 << 34)
    return Device(DEVICE, "a stand-in", fake, new_capture, list, nothing_ahead)


def short_stand_in(stand_in: Path, folder: Path) -> Path:
    """Return the stand-in, or on the CPU a short one in `folder`: a layer of each kind."""
    if DEVICE.type == "cuda":
        return stand_in
    return write_stand_in(folder, **SHORT)


class QuantisedModel(V4Model):
    """A model whose network is that of CUDA devices, wherever it is built."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> QuantisedV4:
        """Return the network; see `Model`."""
        wanted = None if settings.experts == "auto" else cast(ExpertForm, settings.experts)
        return QuantisedV4(
            self.config,
            device,
            experts=expert_form(self.config, wanted, room=settings.weight_bytes),
            deterministic=settings.deterministic,
            draft_tokens=settings.draft_tokens,
            ranks=ranks,
        )


def cuda_runner(
    network: CudaNetwork,
    pools: Pools,
    *,
    vocab: int,
    rows: int = ROWS,
    pages: int = PAGES,
    graphs: tuple[int, ...] = (),
) -> CudaModelRunner:
    """Return a runner of any family for so many rows of so many pages.

    graphs  sizes of decode steps
    """
    width = network.cache.tree.window_pages
    buffers = DecodeBuffers(rows, pages=pages, window_pages=width, device=DEVICE)
    tables = LineTables(rows, pages=pages, window_pages=width)
    lines = Lines(tables, Sampler(vocab, DEVICE), buffers.last[:rows])
    runner = CudaModelRunner(network, pools, lines, buffers)
    runner.capture(graphs, new_capture())
    return runner


class FusedRig:
    """The network of a checkpoint, and fresh runners on it."""

    def __init__(self, folder: Path, *, deterministic: bool = False, draft_tokens: int = 0) -> None:
        settings = Settings(experts="fp8", deterministic=deterministic, draft_tokens=draft_tokens)
        self.network = QuantisedModel(load_config(folder)).build(DEVICE, settings)
        self.config, self.tree = self.network.config, self.network.cache.tree
        load_weights(self.network, folder, progress=False)

    def runner(self, *graphs: int, rows: int = ROWS) -> CudaModelRunner:
        """Return a runner on poisoned pools, with graphs of these sizes."""
        pools = self.network.pools(SIZES)
        for tensor in pools.tensors().values():
            tensor.view(torch.uint8).fill_(0xFF)
        vocab = self.config.vocab_size
        return cuda_runner(self.network, pools, vocab=vocab, rows=rows, graphs=graphs)
