"""One target for so many seconds, in a process with bounds: see `python -m tests.fuzz --help`."""

import faulthandler
import logging
import resource
import sys
import time
from pathlib import Path

from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target

_INPUT_S = 10.0
_MORE_MEMORY_BYTES = 1 << 30
_MOST_GROWTH_BYTES = 48 << 20
_ROUND = 500


def fuzz(target: Target, seconds: float, seed: int, keep: Path) -> str:
    """Check inputs until the time is over; return what was done.

    Raises what the smallest failing input raised, which is then in the file `keep`.
    """
    end = time.monotonic() + seconds
    inputs, grown, settled = 0, 0, _memory()[1]

    def before(data: bytes) -> None:
        nonlocal inputs
        inputs += 1
        keep.write_bytes(data)
        faulthandler.dump_traceback_later(_INPUT_S, exit=True)

    rounds = 0
    while time.monotonic() < end:
        target.run(_ROUND, seed=seed * 1_000_000 + rounds, before=before)
        rounds += 1
        # At first caches fill and libraries load.
        if rounds == 2:
            settled = _memory()[1]
        grown = _memory()[1] - settled
        if rounds > 2 and grown > _MOST_GROWTH_BYTES:
            raise AssertionError(f"memory grows: {grown >> 20} MiB in {rounds} rounds")
    faulthandler.cancel_dump_traceback_later()
    keep.unlink(missing_ok=True)
    return f"{inputs} inputs, {grown / (1 << 20):+.1f} MiB"


def _memory() -> tuple[int, int]:
    """Return the process's address space and its resident memory, in bytes."""
    pages = Path("/proc/self/statm").read_text().split()
    return tuple(int(part) * resource.getpagesize() for part in pages[:2])  # type: ignore[return-value]


def main(name: str, seconds: str, seed: str, keep: str) -> None:
    """Fuzz, and print one line."""
    logging.disable(logging.WARNING)
    limit = _memory()[0] + _MORE_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    Path(keep).mkdir(parents=True, exist_ok=True)
    told = fuzz(TARGETS[name], float(seconds), int(seed), Path(keep) / name)
    print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
