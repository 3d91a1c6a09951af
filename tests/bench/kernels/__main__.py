"""Measures ops against their floors; `--help` says how.

The floor of an op is the bytes it must move over the bandwidth of a large copy. Beside it stands a
plain copy of as many bytes, timed as the op is: inside a CUDA graph, with inputs that change. What
each op is held to: `tests.bench.kernels.case`.
"""

import argparse
import sys
from pathlib import Path

import pytest
import torch

from jit_kernels.registry import chosen
from tests.bench.kernels.case import Case
from tests.bench.kernels.cases import cases
from tests.bench.kernels.compression_cases import cases as compression_cases
from tests.bench.kernels.rows import MOVED, add_rows
from tests.bench.kernels.timing import copy_bandwidth, copy_us, graph_us, input_sets

TESTS = Path(__file__).resolve().parents[2] / "jit_kernels" / "kernels"


def main() -> int:
    """Run the tests, then the benchmark; 1 if a test fails, 2 if an op is slower than allowed."""
    options = _options()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: there is nothing to measure")
    if not options.unchecked and pytest.main(["-q", "-x", str(TESTS)]):
        return 1
    with torch.device("cuda"):
        found = (*cases(), *compression_cases())
        wanted = [case for case in found if not options.op or case.op in options.op]
        unknown = set(options.op) - {case.op for case in wanted}
        if unknown:
            sys.exit(f"no such op: {', '.join(sorted(unknown))}")
        return _measure(wanted, options.csv)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.bench.kernels", description=__doc__)
    parser.add_argument("op", nargs="*", help="ops to measure; all by default")
    parser.add_argument("--csv", type=Path, help="file that rows are added to")
    parser.add_argument("--unchecked", action="store_true", help="measure without testing first")
    return parser.parse_args()


def _measure(wanted: list[Case], target: Path | None) -> int:
    bandwidth = copy_bandwidth()
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, copy {bandwidth / 1e12:.2f} TB/s, read and written")
    print(f"{'op':<16}{'shape':<26}{'us':>9}{'floor':>9}{'copy':>9}{'x copy':>8}{'share':>7}")
    copies: dict[int, float] = {}
    rows: list[list[object]] = []
    slow = 0
    for case in wanted:
        time_us = graph_us([case.prepare() for _ in range(input_sets(case.moved_bytes))])
        if case.moved_bytes not in copies:
            copies[case.moved_bytes] = copy_us(case.moved_bytes)
        copied, floor = copies[case.moved_bytes], case.moved_bytes / bandwidth * 1e6
        slowest = case.limit.slowest_us(copy_us=copied, floor_us=floor)
        slow += time_us > slowest
        line = f"{case.op:<16}{case.shape:<26}{time_us:>9.2f}{floor:>9.2f}{copied:>9.2f}"
        line += f"{time_us / copied:>8.2f}{floor / time_us:>7.2f}"
        print(f"{line}  SLOW, {slowest:.2f} wanted" if time_us > slowest else line, flush=True)
        backend = chosen("cuda")[case.op]
        figures = [round(figure, 2) for figure in (time_us, floor, copied, time_us / floor)]
        rows.append([case.op, backend, case.shape, *figures])
        torch.cuda.empty_cache()
    if target is not None:
        add_rows(target, MOVED, rows)
    print(f"{len(wanted)} measured, {slow} slower than wanted")
    return 2 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
