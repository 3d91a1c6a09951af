"""Turn what the benchmarks kept into a table of what the machine allows and what is reached.

    python -m tests.bench.kernels --csv ops.csv
    python -m tests.bench.kernels.bench_gemm --csv products.csv
    python -m tests.bench.network decode --csv steps.csv
    python -m tests.bench.roofline ops.csv products.csv steps.csv --plot plots

The limits are those measured on one H200: a large copy, read and written, and a large product.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.roofline.pictures import write_pictures
from tests.bench.roofline.point import Machine, UnknownColumns, read_points
from tests.bench.roofline.table import table
from tests.bench.serving.plots import NoMatplotlib


def main(argv: Sequence[str]) -> int:
    """Print the table, write the pictures; 1 for files that cannot be used."""
    options = _parser().parse_args(argv)
    machine = Machine(options.bandwidth, options.fp8_rate, options.bf16_rate)
    try:
        points = read_points(options.csv, machine)
        if options.op:
            points = [point for point in points if point.op in options.op]
        for line in table(points):
            print(line)
        written = write_pictures(options.plot, points, machine) if options.plot else []
    except (OSError, UnknownColumns, NoMatplotlib, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    for path in written:
        print(f"wrote {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    limits = Machine()
    parser = argparse.ArgumentParser(
        "python -m tests.bench.roofline", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("csv", nargs="+", type=Path, help="files that benchmarks have written")
    parser.add_argument("--op", nargs="*", help="ops, decode or prefill; all by default")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write PNGs there (matplotlib)")
    for name, value, what in (
        ("bandwidth", limits.bytes, "bytes a second"),
        ("fp8-rate", limits.fp8, "operations a second"),
        ("bf16-rate", limits.bf16, "operations a second"),
    ):
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what}; {value:g}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
