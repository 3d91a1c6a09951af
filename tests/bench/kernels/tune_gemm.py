"""Tries other tiles for streamed experts on a CUDA device.

Called as `python -m tests.bench.kernels.tune_gemm`:

    python -m tests.bench.kernels.tune_gemm            everything, some minutes
    python -m tests.bench.kernels.tune_gemm 1 64       for 1 and 64 rows only

Prints one line a tile, fastest last, beside the tile that the table holds. Nothing is changed: who
finds a better tile writes it into the table of the op.
"""

import math
import sys
from collections.abc import Callable, Iterator

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.streamed_moe import triton_backend as streamed
from tests.bench.kernels import gemm_cases
from tests.bench.kernels.timing import graph_us

Timed = tuple[float, str]


def tune_streamed(rows: int) -> None:
    """Print the time of routed experts, one table's tile changed at a time, for both forms."""
    tables = {
        "fp4": (streamed.GATE_UP_FP4, streamed.DOWN_FP4),
        "fp8": (streamed.GATE_UP_FP8, streamed.DOWN_FP8),
    }
    for case in gemm_cases.matrix_cases():
        backend, _, form = case.backend.partition(" ")
        if (case.op, case.shape, backend) != ("streamed_moe", f"{rows} rows", "triton"):
            continue
        call = case.make()
        for name, table in zip(("gate_up", "down"), tables[form], strict=True):
            lines = list(_streamed_lines(call, table, form))
            report(f"streamed {form} {name} {rows} rows", lines, case.bytes, str(table))


def _streamed_lines(
    call: Callable[[], object], table: dict[int, streamed.Tile], form: str
) -> Iterator[Timed]:
    kept, few = dict(table), streamed.FEW_BLOCKS
    streamed.FEW_BLOCKS = (0, few[1])
    for weight_rows in (32, 64, 128):
        for warps in (2, 4, 8):
            for depth in (128, 256) if form == "fp4" else (128,):
                for stages in (3, 4, 5):
                    tile = streamed.Tile(weight_rows, depth, warps, stages)
                    table.update(dict.fromkeys(table, tile))
                    yield timed([call], str(tuple(tile)))
    table.update(kept)
    streamed.FEW_BLOCKS = few


def timed(calls: list[Callable[[], object]], tile: str) -> Timed:
    """Return the time of a call and the tile's name; infinite for a tile that does not fit."""
    try:
        return graph_us(calls), tile
    except OutOfResources:
        return math.inf, tile


def report(title: str, lines: list[Timed], moved: int, now: str) -> None:
    """Print the five fastest tiles, the fastest last, and what the table holds."""
    best = sorted(lines)[:5]
    sys.stdout.write(f"{title}; the table: {now}\n")
    for micros, tile in reversed(best):
        sys.stdout.write(f"  {micros:9.2f} us {moved / micros / 1e6:7.2f} TB/s  {tile}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Tune for the numbers of rows that are asked for, or for a few."""
    with torch.device(gemm_cases.DEVICE):
        for count in [int(text) for text in arguments] or [1, 16, 64]:
            tune_streamed(count)


if __name__ == "__main__":
    main(sys.argv[1:])
