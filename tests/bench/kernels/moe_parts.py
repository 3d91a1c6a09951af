"""Times the launches of routed experts one by one: `python -m tests.bench.kernels.moe_parts`.

    python -m tests.bench.kernels.moe_parts 8192      these numbers of rows only

Each launch is captured alone, on what the ones before it left; sorting, copying, both products,
gates, the last sum. Beside each stands the time of its bytes at the bandwidth of a large copy, and
of its operations at the rate of a large product; rows that only pad blocks count for neither.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from jit_kernels.expert_weights import Fp8Experts
from jit_kernels.grouped_moe import deep_gemm_backend, triton_run
from tests.bench.kernels.bench_gemm import FP8_RATE
from tests.bench.kernels.gemm_cases import (
    DEVICE,
    INNER,
    LIMIT,
    TOP_K,
    WIDTH,
    experts,
    fp8_operands,
    routing,
)
from tests.bench.kernels.timing import copy_bandwidth, graph_us

Launch = tuple[str, Callable[[], Any]]
# Names in the order of launches: of rows sorted, copied, multiplied, gated, multiplied, summed.
NAMES = ("sort", "copy", "gate_up", "gate", "down", "sum")


class _Recorder:
    """Stands for a kernel and remembers how it is launched."""

    def __init__(self, name: str, kernel: Any, found: list[Launch]) -> None:
        self.name, self.kernel, self.found = name, kernel, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            self.kernel[grid](*args, **options)
            self.found.append((self.name, lambda: self.kernel[grid](*args, **options)))

        return launch


@contextlib.contextmanager
def _recorded(found: list[Launch]) -> Iterator[None]:
    """Remember the launches of a call inside."""
    kept: list[tuple[dict[str, Any], str, Any]] = []

    def replace(module: Any, name: str, value: Any) -> None:
        kept.append((module.__dict__, name, module.__dict__[name]))
        module.__dict__[name] = value

    def function(module: Any, name: str, title: str) -> None:
        whole = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            result = whole(*args, **options)
            found.append((title, lambda: whole(*args, **options)))
            return result

        replace(module, name, call)

    kernel = triton_run._scatter_kernel  # pyright: ignore[reportPrivateUsage]
    replace(triton_run, "_scatter_kernel", _Recorder("copy", kernel, found))
    function(triton_run, "expert_blocks", "sort")
    function(deep_gemm_backend, "gate_rows", "gate")
    function(triton_run, "weighted_sum", "sum")
    function(deep_gemm_backend, "_product", "product")
    try:
        yield
    finally:
        for names, name, value in reversed(kept):
            names[name] = value


def _floors(rows: int, bandwidth: float) -> dict[str, float]:
    """Return the least time of each part in microseconds."""
    pairs = rows * TOP_K
    touched = len(routing(rows)[0].unique())
    moved = {
        "sort": 20 * pairs,
        "copy": (rows + pairs) * WIDTH,
        "gate_up": pairs * (WIDTH + 4 * INNER) + touched * 2 * INNER * WIDTH,
        "gate": pairs * 5 * INNER,
        "down": pairs * (INNER + 2 * WIDTH) + touched * INNER * WIDTH,
        "sum": 2 * pairs * WIDTH + 2 * rows * WIDTH,
    }
    flops = {"gate_up": 4 * pairs * WIDTH * INNER, "down": 2 * pairs * WIDTH * INNER}
    return {
        name: max(size / bandwidth, flops.get(name, 0) / FP8_RATE) * 1e6
        for name, size in moved.items()
    }


def measure(rows: int, bandwidth: float) -> None:
    """Print the time of every part for this many rows."""
    parts = experts("fp8")
    assert isinstance(parts, Fp8Experts)
    rounded = fp8_operands(rows, WIDTH)
    chosen, weights = (tensor.to(DEVICE) for tensor in routing(rows))
    operands = (*rounded, chosen, weights, parts)

    def whole() -> torch.Tensor:
        return deep_gemm_backend.grouped_moe(*operands, LIMIT, None, torch.bfloat16)

    whole()
    found: list[Launch] = []
    with _recorded(found):
        whole()
    assert len(found) == len(NAMES), [name for name, _ in found]
    floors = _floors(rows, bandwidth)
    print(f"{rows} rows{'us':>16}{'floor':>9}{'share':>7}")
    for name, (_, launch) in zip(NAMES, found, strict=True):
        time_us = graph_us([launch])
        print(f"  {name:<12}{time_us:>9.1f}{floors[name]:>9.1f}{floors[name] / time_us:>7.2f}")
    print(f"  {'all at once':<12}{graph_us([whole]):>9.1f}", flush=True)


def main(arguments: list[str]) -> None:
    """Measure the numbers of rows that are asked for, or a few."""
    bandwidth = copy_bandwidth()
    for rows in [int(text) for text in arguments] or [1024, 4096, 8192, 16384]:
        measure(rows, bandwidth)


if __name__ == "__main__":
    main(sys.argv[1:])
