"""Tries other tiles for the matrix ops on a CUDA device: `python -m tests.bench.kernels.tune_gemm`.

    python -m tests.bench.kernels.tune_gemm                   everything, some minutes
    python -m tests.bench.kernels.tune_gemm streamed 1 64     experts for 1 and 64 rows only

Prints one line a tile, fastest last, beside the tile that the table holds. Nothing is changed: who
finds a better tile writes it into the table of the op.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.bf16_linear import triton_backend as bf16
from jit_kernels.fp8_linear import triton_backend as fp8
from jit_kernels.streamed_moe import triton_backend as streamed
from tests.bench.kernels import gemm_cases
from tests.bench.kernels.timing import graph_us

COPIES = 4

Timed = tuple[float, str]
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def fp8_tiles(rows: int) -> Iterator[fp8.Tile]:
    """Yield tiles worth a try for this many rows of activations."""
    narrow = max(8, min(32, 1 << (rows - 1).bit_length()))
    for weight_rows in (16, 32, 64):
        for split in (2, 4, 8):
            for stages in (3, 4):
                yield fp8.Tile(weight_rows, narrow, split, max(4, split), stages)
    if rows > 16:
        for square in ((64, 32, 4), (64, 64, 4), (128, 64, 4), (128, 128, 8)):
            for stages in (3, 4):
                yield fp8.Tile(square[0], square[1], 1, square[2], stages)


def bf16_tiles(rows: int) -> Iterator[bf16.Tile]:
    """Yield tiles worth a try for this many rows of activations."""
    for tile in fp8_tiles(rows):
        for depth in (64, 128):
            yield bf16.Tile(tile.weight_rows, tile.rows, depth, tile.split, *tile[3:])


def tune_fp8(rows: int) -> None:
    """Print the time of every fp8 linear of a layer with every tile."""
    for name, columns, depth in gemm_cases.FP8_SHAPES:
        sets = [
            (*gemm_cases.fp8_operands(rows, depth), *gemm_cases.fp8_weight(columns, depth))
            for _ in range(COPIES)
        ]

        def run(tile: fp8.Tile, sets: list[Operands] = sets) -> Timed:
            calls = [functools.partial(fp8.multiply, *s, torch.bfloat16, tile=tile) for s in sets]
            return timed([*calls], str(tuple(tile)))

        now = str(tuple(fp8.chosen_tile(rows, columns)))
        report(f"fp8 {name} {rows} rows", map(run, fp8_tiles(rows)), columns * depth, now)


def tune_bf16(rows: int) -> None:
    """Print the time of every bfloat16 linear of a layer with every tile."""
    for name, columns, depth in gemm_cases.BF16_SHAPES:
        sets = [
            (torch.randn(rows, depth).bfloat16(), torch.randn(columns, depth).bfloat16())
            for _ in range(COPIES)
        ]

        def run(tile: bf16.Tile, sets: list[tuple[torch.Tensor, torch.Tensor]] = sets) -> Timed:
            calls = [functools.partial(bf16.multiply, *s, torch.float32, tile=tile) for s in sets]
            return timed([*calls], str(tuple(tile)))

        now = str(tuple(bf16.chosen_tile(rows, columns)))
        report(f"bf16 {name} {rows} rows", map(run, bf16_tiles(rows)), 2 * columns * depth, now)


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


def report(title: str, lines: Iterator[Timed] | list[Timed], moved: int, now: str) -> None:
    """Print the five fastest tiles, the fastest last, and what the table holds."""
    best = sorted(lines)[:5]
    sys.stdout.write(f"{title}; the table: {now}\n")
    for micros, tile in reversed(best):
        sys.stdout.write(f"  {micros:9.2f} us {moved / micros / 1e6:7.2f} TB/s  {tile}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Tune what is asked for: a kind and numbers of rows, or everything."""
    kinds = {"fp8": tune_fp8, "bf16": tune_bf16, "streamed": tune_streamed}
    wanted = arguments[:1] or list(kinds)
    rows = [int(text) for text in arguments[1:]] or [1, 16, 64]
    with torch.device(gemm_cases.DEVICE):
        for kind in wanted:
            for count in rows:
                kinds[kind](count)


if __name__ == "__main__":
    main(sys.argv[1:])
