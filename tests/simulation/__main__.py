"""Random lives of a scheduler and its manager, one a seed.

    python -m tests.simulation --seeds 0..1000 --steps 1000
    python -m tests.simulation --replay 17 --steps 1000      the same life again; shrunk if it fails
    python -m tests.simulation --script failing.jsonl        a script that was printed

Everything runs in this process under one virtual clock. Prints the seed of a life that fails, what
was wrong, and its events, shrunk, as JSON lines: the form that --script reads.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.simulation.running import Outcome, live_script, live_seed
from tests.simulation.script import read_script
from tests.simulation.shrink import Shrinker


def main(argv: list[str]) -> int:
    """Run what is asked for; return the exit code: 1 if a life failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", default="0..100", help="A..B: from A up to, not with, B")
    which.add_argument("--replay", type=int, help="one seed")
    which.add_argument("--script", type=Path, help="JSON lines, as printed")
    parser.add_argument("--steps", type=int, default=1000, help="of each life, before it drains")
    parser.add_argument("--no-shrink", action="store_true", help="print the events as they were")
    options = parser.parse_args(argv)
    if options.script is not None:
        return _report(live_script(read_script(options.script)), shrink=not options.no_shrink)
    if options.replay is not None:
        outcome = live_seed(options.replay, options.steps)
        return _report(outcome, shrink=not options.no_shrink)
    first, last = map(int, options.seeds.split(".."))
    return _run_seeds(range(first, last), options.steps, shrink=not options.no_shrink)


def _run_seeds(seeds: range, steps: int, *, shrink: bool) -> int:
    done, began_s = 0, time.process_time()
    counted = Counter[str]()
    failed: list[int] = []
    for seed in seeds:
        outcome = live_seed(seed, steps)
        done += outcome.steps
        counted += outcome.counted
        if outcome.fault is not None:
            failed.append(seed)
            print(f"seed {seed}:")
            _report(outcome, shrink=shrink)
    print(", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    took_s = time.process_time() - began_s
    print(
        f"{len(seeds)} seeds, {done} steps, {done / took_s:.0f} a second of CPU; failed: {failed}"
    )
    return int(bool(failed))


def _report(outcome: Outcome, *, shrink: bool) -> int:
    """Print how a life went, and what is left of a script that fails; return the exit code."""
    fault = outcome.fault
    if fault is None:
        print(f"{len(outcome.script.events)} events, {outcome.steps} steps: sound")
        return 0
    if shrink:
        outcome = Shrinker(outcome).shrink()
        fault = outcome.fault or fault
    [where] = traceback.extract_tb(fault.__traceback__)[-1:]
    print(f"{type(fault).__name__}: {fault} ({Path(where.filename).name}:{where.lineno})")
    print(outcome.script.lines(), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
