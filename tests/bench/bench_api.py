"""What the API process takes to hand on prompts and to stream tokens, with a scheduler stand-in.

    python -m tests.bench.bench_api [--rows 128] [--tokens 512] [--dialects chat,generate]
                                    [--steps-ms 20,9.14,1] [--reader bare|aiohttp] [--repeat 1]

The process that serves HTTP is real; its scheduler sends one token of each row every step, and
the client is a third process. For each dialect and step time it prints the CPU time of the API
process for an event and a token, how many tokens a second reached the client, the time between
two reads of a stream (p50, p99, max), how busy the client was, and how late timers of the API
process were. 128 rows with steps of 9.14 ms are 14,000 tokens a second; with steps of 1 ms the
process falls behind and sends several tokens in one event. Then its CPU time for a prompt of
8,000 token ids, of which as many come at once as there are rows.

Floors: CPU_FLOOR_US a token with steps that leave it time, RATE_FLOOR tokens a second where it is
behind, PROMPT_FLOOR_US a prompt. CPU time counts, because it does not depend on what else the
machine runs.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from tests.bench.api.reader import Dialect, Reader, Seen, Wanted, read
from tests.bench.api.server import Report, running

CPU_FLOOR_US, RATE_FLOOR, PROMPT_FLOOR_US = 150.0, 10_000.0, 3_000.0
PROMPT_TOKENS = 8_000
_BEHIND_MS = 2.0
_WARM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what the client saw, and what the API process took for it.

    cpu_s   CPU time of the API process
    report  its own notes
    """

    dialect: Dialect
    step_ms: float
    seen: Seen
    cpu_s: float
    report: Report

    @property
    def token_us(self) -> float:
        """CPU time of the API process for a token."""
        return self.cpu_s / self.seen.tokens * 1e6

    @property
    def rate(self) -> float:
        """Tokens a second that reached the client."""
        return self.seen.tokens / self.seen.seconds

    def line(self) -> str:
        """Return what to print."""
        seen = self.seen
        late = [ms for _, ms in self.report.late]
        pause = max((ms for _, ms in self.report.pauses), default=0.0)
        return (
            f"{self.dialect:<11} {self.step_ms:5.2f} {self.cpu_s / seen.events * 1e6:7.1f} "
            f"{self.token_us:7.1f} {self.rate:9,.0f} {seen.gap_p50_ms:7.1f} {seen.gap_p99_ms:7.1f} "
            f"{seen.gap_max_ms:7.1f} {seen.cpu_us:7.1f} {seen.busy:6.0%} "
            f"{statistics.quantiles(late, n=100)[98]:7.1f} {max(late):7.1f} {pause:7.1f}"
        )


HEAD = (
    f"{'dialect':<11} {'step':>5} {'us/evt':>7} {'us/tok':>7} {'tokens/s':>9} {'p50 ms':>7} "
    f"{'p99 ms':>7} {'max ms':>7} {'cl us':>7} {'client':>6} {'late99':>7} {'latemax':>7} "
    f"{'gc max':>7}"
)


def measure(dialect: Dialect, step_ms: float, *, rows: int, tokens: int, reader: Reader) -> Run:
    """Stream `tokens` tokens to each of `rows` readers, after a short run that warms up."""
    with running(step_ms, rows=rows) as (server, reports):
        read(Wanted(server.port, rows, _WARM_TOKENS, dialect))
        started_s, before_s = time.monotonic(), server.cpu_s()
        seen = read(Wanted(server.port, rows, tokens, dialect, reader))
        cpu_s, ended_s = server.cpu_s() - before_s, time.monotonic()
    return Run(dialect, step_ms, seen, cpu_s, reports[0].between(started_s, ended_s))


def measure_prompts(rows: int, *, rounds: int = 4) -> float:
    """Return microseconds of CPU a long prompt takes, `rows` of them sent at once."""
    with running(1.0, rows=rows) as (server, _):
        wanted = Wanted(server.port, rows, 1, "generate", prompt=PROMPT_TOKENS)
        read(wanted)
        before_s = server.cpu_s()
        for _ in range(rounds):
            read(wanted)
        return (server.cpu_s() - before_s) / (rounds * rows) * 1e6


def _runs(options: argparse.Namespace) -> Iterator[Run]:
    for dialect in options.dialects:
        for step_ms in options.steps_ms:
            for _ in range(options.repeat):
                run = measure(
                    dialect,
                    step_ms,
                    rows=options.rows,
                    tokens=options.tokens,
                    reader=options.reader,
                )
                print(run.line(), flush=True)
                yield run


def _dialects(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(get_args(Dialect)):
        raise argparse.ArgumentTypeError(f"dialects are {', '.join(get_args(Dialect))}")
    return names


def _floats(text: str) -> list[float]:
    return [float(item) for item in text.split(",")]


def main() -> int:
    """Print all runs; return 1 if a floor is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.bench_api",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--dialects", type=_dialects, default=list(get_args(Dialect)))
    parser.add_argument("--steps-ms", type=_floats, default=[20.0, 9.14, 1.0])
    parser.add_argument("--reader", choices=get_args(Reader), default="bare")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-prompts", action="store_true", help="leave out the long prompts")
    options = parser.parse_args()
    print(HEAD, flush=True)
    runs = list(_runs(options))
    slow = any(
        run.rate < RATE_FLOOR if run.step_ms < _BEHIND_MS else run.token_us > CPU_FLOOR_US
        for run in runs
    )
    if not options.no_prompts:
        prompt_us = measure_prompts(options.rows)
        print(f"prompts of {PROMPT_TOKENS} ids, {options.rows} at once: {prompt_us:.0f} us of CPU")
        slow = slow or prompt_us > PROMPT_FLOOR_US
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
