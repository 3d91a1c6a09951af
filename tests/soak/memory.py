"""Resident memory of the server's processes over time, and whether it grows."""

from dataclasses import dataclass
from pathlib import Path

from tests.soak.history import Series

MIB = 1 << 20
# What the second half's peak may have over the first half's. Peaks, as allocators give back and
# take again (seen: 40 MiB at a flush). A leak of 1 KiB a request passes this within half an hour.
BOUND_MIB = 12.0
BOUND_SHARE = 0.02
# Libraries load, pools fill, arenas open: at first every process grows (seen: 55 MiB).
WARM_S = 60.0
WARM_UP_MIB = 80.0


@dataclass(frozen=True, slots=True)
class Growth:
    """One process: its peak of resident bytes in each half of a life of so many seconds."""

    name: str
    first: float
    second: float
    seconds: float

    @property
    def grown(self) -> float:
        """Bytes that the second half's peak has over the first half's."""
        return self.second - self.first

    @property
    def bound(self) -> float:
        """Bytes that it may have."""
        warm_up = WARM_UP_MIB * MIB if self.seconds / 2 < WARM_S else 0.0
        return BOUND_MIB * MIB + BOUND_SHARE * self.first + warm_up

    def __str__(self) -> str:
        return (
            f"{self.name}: peak {self.second / MIB:.0f} MiB, {self.grown / MIB:+.1f} MiB over "
            f"that of the first half (at most {self.bound / MIB:+.0f})"
        )


class MemoryWatch:
    """Samples the processes with these ids; they must live as long as this."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._samples: list[tuple[float, ...]] = []

    def sample(self, now_s: float) -> None:
        """Read the resident memory of every process."""
        self._samples.append((now_s, *(_rss(pid) for pid in self._processes.values())))

    def series(self, since_s: float) -> dict[str, Series]:
        """Return the samples of each process in MiB, by seconds since `since_s`."""
        times, *columns = zip(*self._samples, strict=True)
        return {
            name: [(at - since_s, value / MIB) for at, value in zip(times, column, strict=True)]
            for name, column in zip(self._processes, columns, strict=True)
        }

    def growth(self) -> list[Growth]:
        """Return the peaks of each process."""
        times, *columns = zip(*self._samples, strict=True)
        half = len(times) // 2
        seconds = times[-1] - times[0]
        return [
            Growth(name, max(column[:half]), max(column[half:]), seconds)
            for name, column in zip(self._processes, columns, strict=True)
        ]


def process_name(pid: int) -> str:
    """Return what a child of the server is called in the report."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "scheduler" if b"scheduler_process" in command else "child"


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no resident memory")
