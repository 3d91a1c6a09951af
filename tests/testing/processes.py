"""Processes of this machine, as /proc has them: whose children they are, what runs, what ended."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

_LOOK_S = 0.05


def descendants(pid: int) -> list[int]:
    """Return the ids of all living descendants of a process, nearest first (Linux)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found = [pid]
    for one in found:
        found.extend(sorted(child for child, parent in parents.items() if parent == one))
    return found[1:]


def running(module: str, processes: Sequence[int]) -> list[int]:
    """Return which processes run this module as their main one, in the order given."""
    name = module.encode()
    return [pid for pid in processes if name in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_gone(processes: Sequence[int], limit_s: float) -> None:
    """Return once all have ended, whether or not they are reaped; fail after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in processes if not _is_gone(pid)]:
        assert time.monotonic() < deadline, f"processes {left} are still there"
        time.sleep(_LOOK_S)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
