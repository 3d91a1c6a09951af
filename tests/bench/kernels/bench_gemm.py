"""Times the matrix ops with every backend: `python -m tests.bench.kernels.bench_gemm [op ...]`.

The floor is the longer of the bytes over the bandwidth of a large copy and the operations over the
rate of a large product of the same kind of numbers, as measured on the card at hand before.
"""

import argparse
import sys
from pathlib import Path

import torch

from tests.bench.kernels.gemm_cases import DEVICE, MatrixCase, matrix_cases
from tests.bench.kernels.rows import add_rows
from tests.bench.kernels.timing import copy_bandwidth, graph_us, input_sets

FIGURES = ("us", "floor us", "ratio", "TB/s", "TFLOP/s")
# Operations a second of 8192 x 8192 x 8192 on one H200; see the design, section 7.
FP8_RATE, BF16_RATE = 1.389e15, 0.772e15


def main() -> int:
    """Time what is asked for; 1 if a case could not run."""
    options = _options()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: there is nothing to measure")
    bandwidth, gpu = copy_bandwidth(), torch.cuda.get_device_name()
    print(f"{gpu}, copy {bandwidth / 1e12:.2f} TB/s, read and written")
    print(f"{'op':<20}{'backend':<11}{'shape':<32}{'us':>10}{'floor':>9}{'share':>7}{'TF/s':>8}")
    rows: list[list[object]] = []
    failed = 0
    for case in matrix_cases():
        if _is_wanted(case, options):
            row = _measured(case, bandwidth)
            failed += row is None
            rows += [row] if row else []
    if options.csv is not None:
        add_rows(options.csv, FIGURES, rows)
    print(f"{len(rows)} measured, {failed} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.bench.kernels.bench_gemm")
    parser.add_argument("op", nargs="*", help="ops to measure; all by default")
    parser.add_argument("--backend", nargs="*", help="backends to measure; all by default")
    parser.add_argument("--rows", nargs="*", type=int, help="numbers of rows; all by default")
    parser.add_argument("--csv", type=Path, help="file that rows are added to")
    return parser.parse_args()


def _is_wanted(case: MatrixCase, options: argparse.Namespace) -> bool:
    return (
        (not options.op or case.op in options.op)
        and (not options.backend or case.backend in options.backend)
        and (not options.rows or case.rows in options.rows)
    )


def _measured(case: MatrixCase, bandwidth: float) -> list[object] | None:
    label = f"{case.op:<20}{case.backend:<11}{case.shape:<32}"
    try:
        with torch.device(DEVICE):
            time_us = graph_us([case.make() for _ in range(input_sets(case.bytes))])
    except (RuntimeError, ImportError) as error:
        print(f"{label} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None
    rate = FP8_RATE if case.op.startswith(("fp8", "grouped")) else BF16_RATE
    floor = max(case.bytes / bandwidth, case.flops / rate) * 1e6
    speed = (case.bytes / time_us / 1e6, case.flops / time_us / 1e6)
    print(
        f"{label}{time_us:>10.2f}{floor:>9.2f}{floor / time_us:>7.2f}{speed[1]:>8.0f}", flush=True
    )
    torch.cuda.empty_cache()
    figures = [round(figure, 2) for figure in (time_us, floor, time_us / floor, *speed)]
    return [case.op, case.backend, case.shape, *figures]


if __name__ == "__main__":
    sys.exit(main())
