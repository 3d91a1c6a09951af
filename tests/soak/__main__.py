"""Random traffic on a real server with small pools, for as long as asked.

    python -m tests.soak --minutes 60 [--clients 12] [--seed 0] [--check-every-step] [--report FILE]

The server runs twice: a quarter of the time every invariant of the cache is checked after every
step, the rest only when idle, as in production; with `--check-every-step` all the time. FILE
becomes a page with the report and plots of both lives. Clients chat, continue, fork, edit, repeat,
hang up, abort, send too much and send nonsense, with several cache salts, streaming and not; at
idle moments the cache is flushed. It fails unless

    every call was answered as it had to be, or was ended by its client
    the same prompt got the same greedy tokens, whatever was reused
    the server stayed healthy and its cache sound, and stopped with exit code 0
    idle and flushed, every page, SWA page and ring is free
    requests = finished + aborted + failed, nothing failed, and /metrics says the same
    no process's peak memory of the second half is above the first half's by more than 12 MiB and
        2 % (80 MiB more in lives of less than two minutes, which are all warm-up)
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.soak.history import History
from tests.soak.life import Life, Plan, live
from tests.soak.page import page


def main(argv: list[str]) -> int:
    """Run both lives and print a report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every-step", action="store_true")
    parser.add_argument("--report", type=Path, help="HTML page to write")
    options = parser.parse_args(argv)
    lives: list[tuple[str, str, History]] = []
    for life in soak(
        60 * options.minutes,
        clients=options.clients,
        seed=options.seed,
        check=options.check_every_step,
    ):
        print(life.report(), flush=True)
        title = f"{life.plan.policy}{', checked after every step' if life.plan.check else ''}"
        lives.append((title, life.report(), life.tally.history))
        if options.report is not None:
            options.report.write_text(page(lives), encoding="utf-8")
    return 0


def soak(
    seconds: float,
    *,
    clients: int,
    seed: int,
    repeats: int = 0,
    events: tuple[str, ...] = (),
    check: bool = False,
) -> Iterator[Life]:
    """Run both lives, and yield each at its end.

    repeats  greedy tokens told again that a life waits for, on a machine that manages few calls
    events   counters that it waits for, too
    check    also check every invariant after every step of the second life

    Raises AssertionError for the first thing that is not as it must be.
    """
    for share, checked, policy in ((0.25, True, "lru"), (0.75, check, "turns")):
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(
                seconds * share, repeats, clients, seed, check=checked, policy=policy, events=events
            )
            yield live(plan, Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
