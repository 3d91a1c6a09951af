"""What N replicas hit and how long first tokens take, by routing policy, in a simulation.

    python -m tests.bench.replicas --replicas 8 --trace tests/bench/replicas/small.jsonl

`--trace` is a file in the format of Mooncake's traces, `--own` the folder of the shared cache
benchmark, whose trace is then replayed, `--cells` a folder with Mooncake's conversation.jsonl.xz
and synthetic.jsonl.xz: four settings of both. The first table has hit rates and times to first
token, the second one compares policies by what is asked of the exact router.
"""

import argparse
import json
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.replicas.plots import write_plots
from tests.bench.replicas.report import Cell, comparison, table, table_head
from tests.bench.replicas.routers import POOLED, ROUTERS
from tests.bench.replicas.simulation import Fleet, simulate
from tests.bench.replicas.step_model import StepModel
from tests.bench.replicas.trace import Call, mooncake_trace, own_trace
from tests.bench.serving.plots import NoMatplotlib

POLICIES = (*ROUTERS, POOLED)


class _Setting(NamedTuple):
    trace: str
    prefill_rate: float
    tokens: int


# Traces, prompt tokens a second and tokens of cache of a replica.
CELLS = (
    _Setting("conversation", 20_000, 2_000_000),
    _Setting("conversation", 7_000, 2_000_000),
    _Setting("synthetic", 8_000, 500_000),
    _Setting("synthetic", 8_000, 2_000_000),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, simulate, and print the tables."""
    options = _parser().parse_args(arguments)
    cells: list[Cell] = []
    print(table_head(), flush=True)
    for name, calls, fleet in _settings(options):
        cell = Cell(name, {})
        for policy in options.policies:
            with _quiet():
                cell.outcomes[policy] = simulate(calls, fleet, policy, seed=options.seed)
            print(table(name, policy, cell.outcomes[policy]), flush=True)
        cells.append(cell)
    print("\n" + comparison(cells))
    if options.output_file:
        options.output_file.write_text(json.dumps([cell.as_json() for cell in cells], indent=1))
    if options.plot:
        for path in write_plots(options.plot, cells):
            print(path)


@contextmanager
def _quiet() -> Generator[None]:
    """Say nothing of pools that are too small for waypoints: it is part of what is measured."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _settings(options: argparse.Namespace) -> Iterator[tuple[str, list[Call], Fleet]]:
    """Yield name, requests and replicas of each table."""
    if options.cells:
        for trace, rate, tokens in CELLS:
            path = options.cells / f"{trace}.jsonl.xz"
            calls = mooncake_trace(path, seed=options.seed, limit=options.requests)
            name = f"{trace}, {rate / 1000:g}k/s, {tokens / 1e6:g}M"
            yield name, calls, _fleet(options, rate, tokens)
        return
    if options.trace:
        name = options.trace.name.partition(".")[0]
        calls = mooncake_trace(options.trace, seed=options.seed, limit=options.requests)
    else:
        name = f"own, {options.rate:g} requests/s"
        calls = own_trace(
            options.own,
            seed=options.seed,
            sessions=options.sessions,
            requests_per_s=options.rate,
        )[: options.requests]
    yield name, calls, _fleet(options, options.prefill_rate, options.tokens)


def _fleet(options: argparse.Namespace, rate: float, tokens: int) -> Fleet:
    model = StepModel(rate, decodes=not options.no_decode, rows=options.rows)
    return Fleet(options.replicas, tokens, model)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replicas", allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="a Mooncake trace, .jsonl or .jsonl.xz")
    source.add_argument("--own", type=Path, help="folder of the shared cache benchmark")
    source.add_argument("--cells", type=Path, help="folder of Mooncake's traces: four settings")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--tokens", type=_count, default=2_000_000, help="that a replica caches")
    parser.add_argument("--prefill-rate", type=float, default=20_000.0, help="tokens a second")
    parser.add_argument("--no-decode", action="store_true", help="answers have one token")
    parser.add_argument("--rows", type=int, default=64, help="requests that a replica runs at once")
    parser.add_argument("--seed", type=int, default=0, help="0: a trace's times as recorded")
    parser.add_argument("--requests", type=int, help="the first so many of the trace")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second, for --own")
    parser.add_argument("--sessions", type=int, default=1000, help="for --own")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--output-file", type=Path, help="write all figures as JSON")
    parser.add_argument("--plot", type=Path, help="write plots into this folder (matplotlib)")
    return parser


def _count(text: str) -> int:
    return int(float(text))


if __name__ == "__main__":
    try:
        main()
    except NoMatplotlib as missing:
        raise SystemExit(str(missing)) from None
