"""The file of recorded workloads; `python -m tests.runtime.scheduler.recorded.record` writes it.

Record anew only where a change of plans is wanted, and say in the commit what changed and why.
"""

import logging
import lzma
from collections.abc import Sequence
from pathlib import Path

from tests.runtime.scheduler.recorded.player import play
from tests.runtime.scheduler.recorded.workloads import workload

PATH = Path(__file__).with_name("plans.txt.xz")
WORKLOADS = 204
HEAD = "workload "


def played(seed: int) -> list[str]:
    """Return what a workload does now: its steps, answers and counts."""
    done = play(workload(seed))
    counts = ", ".join(f"{count} {name}" for name, count in sorted(done.counts.items()))
    return [*done.lines, f"counts {counts}"]


def read() -> list[list[str]]:
    """Return what each workload did when it was recorded."""
    blocks: list[list[str]] = []
    for line in lzma.decompress(PATH.read_bytes()).decode().splitlines():
        if line.startswith(HEAD):
            blocks.append([])
        else:
            blocks[-1].append(line)
    return blocks


def write(blocks: Sequence[Sequence[str]]) -> None:
    """Record what workloads do."""
    lines = [line for seed, block in enumerate(blocks) for line in (f"{HEAD}{seed}", *block)]
    PATH.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))


def difference(recorded: Sequence[str], now: Sequence[str]) -> str:
    """Return the first step or line that differs, whole, and what came before it; "": none."""
    pairs = zip(recorded, now, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(recorded), len(now)))
    if same == len(recorded) == len(now):
        return ""
    # Rows are indented: show their step from its own line on.
    whole = max(len(recorded), len(now))
    start = next((i for i in range(same, 0, -1) if not _is_row(recorded, now, i)), 0)
    before = max([i for i in range(start) if not _is_row(recorded, now, i)] or [0])
    parts = ["before:", *recorded[before:start]]
    for name, block in (("recorded:", recorded), ("now:", now)):
        end = next((i for i in range(start + 1, whole) if not _is_row(block, block, i)), whole)
        parts += [name, *(block[start:end] or ["nothing more"])]
    return "\n".join(parts)


def _is_row(recorded: Sequence[str], now: Sequence[str], i: int) -> bool:
    """Whether line `i` belongs to a step of both."""
    return all(i < len(block) and block[i].startswith(" ") for block in (recorded, now))


def main() -> None:
    """Record all workloads, and print which have changed."""
    logging.disable(logging.WARNING)
    before = read() if PATH.exists() else []
    blocks = [played(seed) for seed in range(WORKLOADS)]
    changed = [seed for seed, block in enumerate(blocks) if before[seed : seed + 1] != [block]]
    write(blocks)
    print(f"{len(blocks)} workloads, {PATH.stat().st_size} bytes; changed: {changed or 'none'}")


if __name__ == "__main__":
    main()
