"""A network over fused ops with its runner: on a CUDA device where there is one, else on the CPU.

On the CPU a graph is stood in for by running the step again into the same output.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from jit_kernels.cuda_library import compile_all
from jit_kernels.vendor_calls import VendorCalls
from layers.models.deepseek_v4.config import ModelConfig, load_config, pool_spec
from layers.models.deepseek_v4.network import FusedV4
from layers.weights.loading import load_weights
from mem_cache.pools import KvPools
from mem_cache.spec import PoolSizes, PoolSpec
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
SIZES = PoolSizes(full_pages=24, swa_pages=96, rings=24)
ROWS, PAGES = 4, 8
# Every kind of attention, and of both kinds of routing.
SHORT = {"num_hidden_layers": 3, "compress_ratios": [0, 128, 4], "num_hash_layers": 1}


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


def nothing_ahead(
    calls: Sequence[VendorCalls], *, stop: Event, tell: Callable[[str], None]
) -> list[str]:
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
    """Return the stand-in, or on the CPU one of half its layers: one of each kind, in `folder`."""
    if DEVICE.type == "cuda":
        return stand_in
    return write_stand_in(folder, **SHORT)


class FusedRig:
    """The network of a checkpoint, and fresh runners on it."""

    def __init__(self, folder: Path, *, deterministic: bool = False) -> None:
        self.config: ModelConfig = load_config(folder)
        self.spec: PoolSpec = pool_spec(self.config, "fp8")
        self.network = FusedV4(self.config, DEVICE, experts="fp8", deterministic=deterministic)
        load_weights(self.network, folder, progress=False)

    def runner(self, *graphs: int, rows: int = ROWS, draft_tokens: int = 0) -> CudaModelRunner:
        """Return a runner on poisoned pools, with graphs of these sizes."""
        spec = pool_spec(self.config, "fp8", draft_tokens=draft_tokens)
        pools = KvPools(spec, SIZES, DEVICE)
        for tensor in pools.tensors().values():
            tensor.view(torch.uint8).fill_(0xFF)
        buffers = DecodeBuffers(
            rows, pages=PAGES, window_pages=spec.tree.window_pages, device=DEVICE
        )
        tables = LineTables(rows, pages=PAGES, window_pages=spec.tree.window_pages)
        lines = Lines(tables, Sampler(self.config.vocab_size, DEVICE), buffers.last[:rows])
        runner = CudaModelRunner(self.network, pools, lines, buffers)
        runner.capture(graphs, new_capture())
        return runner
