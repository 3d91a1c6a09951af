"""The runs that servers are compared by, one after the other against one server.

    python -m tests.bench.serving.standard --csv runs.csv
    python -m tests.bench.serving.standard --phases decode --batches 1 64

prefill  prompts of 8k and 64k tokens, alone and eight at a time, one token of answer
decode   answers of 512 tokens to as many cached prompts of 8k tokens as the batch has
turns    32 conversations of 4 turns after a shared system prompt of 8k tokens

The table has a row for each run, and for `turns` one for each turn. Beside ours stands the best
of the configurations in the file of `--beside`: figures of another server, taken from the same
requests on the same kind of machine.
"""

import argparse
import asyncio
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.bench.serving.options import APIS, parse
from tests.bench.serving.play import Played, keep, play
from tests.bench.serving.summary import Summary

PHASES = ("prefill", "decode", "turns")
PEER = Path(__file__).with_name("sglang_h200.csv")
TIMES = ("s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms")
COLUMNS = ("tokens/s", *TIMES, "cached %")
_CONTEXT = 8192
# Prompt tokens, at a time, in all.
_PREFILLS = ((8192, 1, 6), (8192, 8, 32), (65536, 1, 3), (65536, 8, 8))
_ANSWER = 512
_NAME_WIDTH = 20
_CELL_WIDTH = 13


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the set: a phase, its name in the table, and the flags of the run."""

    phase: str
    name: str
    flags: tuple[str, ...]


def runs(
    batches: Sequence[int], *, scale: int = 1, phases: Sequence[str] = PHASES
) -> Iterator[Run]:
    """Yield the runs of `phases`, every number of tokens divided by `scale`."""
    if "prefill" in phases:
        for tokens, at_once, count in _PREFILLS:
            flags = _random(count if scale == 1 else at_once, max(16, tokens // scale), 1)
            flags += ("--max-concurrency", str(at_once), "--flush-cache")
            yield Run("prefill", f"prefill {tokens} x {at_once}", flags)
    if "decode" in phases:
        for nth, batch in enumerate(batches):
            flags = _random(batch, max(16, _CONTEXT // scale), max(4, _ANSWER // scale))
            # The prompts of a batch are those of the batch before it, and more.
            flags += ("--prefill-first", *(() if nth else ("--flush-cache",)))
            yield Run("decode", f"decode x {batch}", flags)
    if "turns" in phases:
        numbers = {"system": _CONTEXT, "user": 1024, "output": 128}
        flags = ("multi-turn", "--sessions", str(max(2, 32 // scale)), "--flush-cache")
        for name, tokens in numbers.items():
            flags += (f"--{name}-tokens", str(max(4, tokens // scale)))
        yield Run("turns", "turns", flags)


def _random(requests: int, input_tokens: int, output_tokens: int) -> tuple[str, ...]:
    numbers = {"requests": requests, "input-tokens": input_tokens, "output-tokens": output_tokens}
    return ("random", *(word for k, v in numbers.items() for word in (f"--{k}", str(v))))


def main(argv: Sequence[str]) -> int:
    """Run the set; 0 if every request succeeded, 1 if not."""
    options = _parser().parse_args(argv)
    peer = best_of(options.beside) if options.scale == 1 else {}
    shared = ["--url", options.url, "--api", options.api, "--quiet", "--warmup-requests", "0"]
    shared += ["--machine", options.machine] if options.machine else []
    shared += ["--csv", str(options.csv)] if options.csv else []
    failed = 0
    print(f"{'':<{_NAME_WIDTH}}" + "".join(f"{name:>{_CELL_WIDTH}}" for name in COLUMNS))
    for run in runs(options.batches, scale=options.scale, phases=options.phases):
        try:
            played = asyncio.run(play(parse([*run.flags, *shared])))
            keep(played)
        except (OSError, RuntimeError, ValueError, aiohttp.ClientError) as fault:
            print(f"error: {run.name}: {type(fault).__name__}: {fault}", file=sys.stderr)
            return 1
        failed += played.summary.errors
        for line in _lines(run, played, peer):
            print(line, flush=True)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.bench.serving.standard", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="where the server listens")
    parser.add_argument("--api", choices=APIS, default="generate", help="the endpoint asked")
    parser.add_argument(
        "--phases", nargs="*", choices=PHASES, default=PHASES, help="all by default"
    )
    parser.add_argument(
        "--batches", nargs="*", type=int, default=(1, 16, 64, 128), help="of decode"
    )
    parser.add_argument("--scale", type=int, default=1, help="divides every length, for a dry run")
    parser.add_argument("--beside", type=Path, default=PEER, help="CSV of another server's figures")
    parser.add_argument("--machine", help="where the server runs; default: this machine")
    parser.add_argument("--csv", type=Path, help="CSV file to add a row for each run to")
    return parser


def best_of(path: Path) -> dict[str, list[float | None]]:
    """Return the best of each column by row name: the most of a rate or share, the least time."""
    found: dict[str, list[list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            columns = found.setdefault(row["run"], [[] for _ in COLUMNS])
            for name, values in zip(COLUMNS, columns, strict=True):
                values += [float(row[name])] if row[name] else []
    best = [min if name in TIMES else max for name in COLUMNS]
    return {
        run: [of(values) if values else None for of, values in zip(best, columns, strict=True)]
        for run, columns in found.items()
    }


def cells(run: Run, summary: Summary) -> list[float | None]:
    """Return the figures of a row: prompt tokens a second of a prefill, else answer tokens."""
    rate = summary.output_tokens_per_s
    if run.phase == "prefill":
        rate = summary.input_tokens_per_s
    elif run.phase == "decode" and summary.steady_tokens_per_s is not None:
        rate = summary.steady_tokens_per_s
    ttft, itl = summary.ttft, summary.itl
    return [
        rate,
        summary.duration_s,
        ttft and ttft.p50,
        ttft and ttft.p99,
        itl and itl.p50,
        itl and itl.p99,
        None if summary.cached_share is None else 100 * summary.cached_share,
    ]


def _lines(run: Run, played: Played, peer: dict[str, list[float | None]]) -> Iterator[str]:
    rows = {run.name: played.summary, **played.groups}
    for name, summary in rows.items():
        yield _line(name, cells(run, summary))
        if name in peer:
            yield _line("  to be ahead of", peer[name])


def _line(name: str, figures: Sequence[float | None]) -> str:
    written = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
    return f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_CELL_WIDTH}}" for cell in written)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
