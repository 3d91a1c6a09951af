"""Fuzz every target, or one of them, for as long as asked.

    python -m tests.fuzz --seconds 600 [--only gguf] [--seed 0] [--keep FOLDER]

Each target runs in a process of its own with a bound on its memory, and each input has ten
seconds: a crash, a hang, an absurd allocation and growth are failures, too. The input that a target
failed at is written to FOLDER/NAME; put it into tests/fuzz/corpus/NAME once the fault is mended,
and the suite checks it from then on.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.openapi import OPENAPI
from tests.fuzz.registry import TARGETS

_START_S = 120


def main(argv: list[str]) -> int:
    """Run the targets, one after the other; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    parser.add_argument("--only", choices=[*TARGETS, OPENAPI], help="one target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"))
    options = parser.parse_args(argv)
    names = [options.only] if options.only else [*TARGETS, OPENAPI]
    failed = [
        name
        for name in names
        if not _run(name, options.seconds / len(names), options.seed, options.keep)
    ]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed", flush=True)
    return 1 if failed else 0


def _run(name: str, seconds: float, seed: int, keep: Path) -> bool:
    """Fuzz one target in a process; return whether it held."""
    module = "tests.fuzz.openapi" if name == OPENAPI else "tests.fuzz.endless"
    command = [sys.executable, "-m", module, name, str(seconds), str(seed), str(keep)]
    try:
        code = subprocess.run(command, check=False, timeout=3 * seconds + _START_S).returncode
    except subprocess.TimeoutExpired:
        code = "no end"
    if code != 0:
        print(f"{name}: {code}; its input is {keep / name}", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
