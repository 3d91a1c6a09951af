"""Measures how fast ranks load a checkpoint like V4-Flash, beside a plain reader of its files.

    write FOLDER --layers 43     a synthetic one: names, shapes, dtypes and files as published
    read FOLDER --ranks 2        its loading by so many processes, cold and warm

All of it has 160 GB (`--draft dspark`: 167). For a smaller machine give fewer `--layers`, or fewer
`--experts` a layer. Cold is after the kernel was told to forget the files; page cache of an
enclosing virtual machine's host stays. With `--device cuda` rank r loads to GPU r.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from tests.bench.loading.files import drop_from_memory, write_checkpoint
from tests.bench.loading.plain_reader import plain_read
from tests.bench.loading.published import DraftHead
from tests.bench.serving.machine import ROOT, commit, machine

_GB = 1e9
_MIB = 1 << 20


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="tests.bench.loading", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write a synthetic checkpoint")
    write.add_argument("folder", type=Path)
    write.add_argument("--layers", type=int, default=43)
    write.add_argument("--experts", type=int, default=256, help="routed experts of a layer")
    write.add_argument("--shards", type=int, default=48, help="files")
    write.add_argument("--draft", choices=get_args(DraftHead), default="mtp", help="draft head")
    read = commands.add_parser("read", help="load it, and read it plainly")
    read.add_argument("folder", type=Path)
    read.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4, 8))
    read.add_argument(
        "--drop", action="store_true", help="read and cut only, and arrange nothing for kernels"
    )
    read.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def main() -> None:
    """Write or measure."""
    options = parse(sys.argv[1:])
    if options.command == "write":
        began = time.monotonic()
        total = write_checkpoint(
            options.folder,
            layers=options.layers,
            experts=options.experts,
            shards=options.shards,
            draft=options.draft,
        )
        print(_rate("written", total, time.monotonic() - began))
        return
    print(f"# {machine()}, commit {commit()}")
    for cold in (True, False):
        measure(options, cold=cold)


def measure(options: argparse.Namespace, *, cold: bool) -> None:
    """Print one line for the plain reader, one for all ranks, and one for each rank."""
    folder, temperature = options.folder, "cold" if cold else "warm"
    if cold:
        drop_from_memory(folder)
    size, plain_s = plain_read(folder)
    print(_rate(f"{temperature}, plain reader", size, plain_s))
    told = load(options, cold=cold)
    longest_s = max(one["seconds"] for one in told)
    share = plain_s / longest_s
    line = _rate(f"{temperature}, loader of {options.ranks} ranks", size, longest_s)
    print(f"{line}, {share:.0%} of the plain reader's rate")
    for rank, one in enumerate(told):
        print(
            f"  rank {rank}: {one['seconds']:.2f} s, keeps {one['kept'] / _GB:.2f} GB, "
            f"{one['beyond'] / _MIB:.0f} MiB of the host beyond page cache"
        )


def load(options: argparse.Namespace, *, cold: bool) -> list[dict[str, float]]:
    """Have all ranks load at once; return what each tells of it."""
    module = [sys.executable, "-m", "tests.bench.loading.rank", str(options.folder.absolute())]
    ending = [str(options.ranks), options.device, "drop" if options.drop else "arrange"]
    processes = [
        subprocess.Popen(
            [*module, str(rank), *ending],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(options.ranks)
    ]
    try:
        for process in processes:
            _line(process)
        if cold:
            drop_from_memory(options.folder)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_line(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _line(process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a rank ended before it had loaded")
    return cast(dict[str, Any], json.loads(line))


def _rate(what: str, size: int, seconds: float) -> str:
    return f"{what}: {size / _GB:.2f} GB in {seconds:.2f} s, {size / _GB / seconds:.2f} GB/s"


if __name__ == "__main__":
    main()
