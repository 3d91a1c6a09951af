"""What the processes of a server use, as /proc tells it (Linux)."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.testing.processes import descendants

MIB = 1 << 20
_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """One process at one moment.

    files    that it has open
    delay_s  for which its main thread was ready and had no processor
    """

    resident_mib: float
    files: int
    cpu_s: float
    delay_s: float


def usage(pid: int) -> dict[str, Usage]:
    """Return what the server's first process, `api`, and its scheduler use."""
    schedulers = [child for child in descendants(pid) if _is_scheduler(child)]
    named = {"api": pid, **{f"scheduler{k or ''}": one for k, one in enumerate(schedulers)}}
    return {name: _of(one) for name, one in named.items()}


def _is_scheduler(pid: int) -> bool:
    return b"scheduler_process" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    pages = int((folder / "statm").read_text().split()[1])
    return Usage(
        resident_mib=pages * _PAGE_BYTES / MIB,
        files=len(list((folder / "fd").iterdir())),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_S,
        delay_s=int((folder / "schedstat").read_text().split()[1]) / 1e9,
    )
