"""Resident memory of the server's processes over time, and whether it grows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

MIB = 1 << 20
# What the second half of a run may add: allocators keep what they once needed, and the pools take
# host memory as they fill. A leak of 1 KiB a request passes this within a quarter of an hour.
BOUND_MIB = 12.0
BOUND_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Growth:
    """One process: resident bytes at the end, and the fitted growth over the second half."""

    name: str
    rss: float
    grown: float
    seconds: float

    @property
    def bound(self) -> float:
        """Bytes that the second half may add."""
        return BOUND_MIB * MIB + BOUND_SHARE * self.rss

    def __str__(self) -> str:
        return (
            f"{self.name} {self.rss / MIB:.0f} MiB, {self.grown / MIB:+.1f} MiB in the last "
            f"{self.seconds:.0f} s (at most {self.bound / MIB:.0f})"
        )


class MemoryWatch:
    """Samples the processes with these ids; they must live as long as this."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._samples: list[tuple[float, ...]] = []

    def sample(self, now_s: float) -> None:
        """Read the resident memory of every process."""
        self._samples.append((now_s, *(_rss(pid) for pid in self._processes.values())))

    def growth(self) -> list[Growth]:
        """Fit a line through the second half of the samples of each process."""
        half = np.array(self._samples[len(self._samples) // 2 :])
        times = half[:, 0] - half[0, 0]
        result: list[Growth] = []
        for name, values in zip(self._processes, half[:, 1:].T, strict=True):
            slope = float(np.polyfit(times, values, 1)[0])
            seconds = float(times[-1])
            result.append(Growth(name, float(values[-1]), slope * seconds, seconds))
        return result


def process_name(pid: int) -> str:
    """Return what a child of the server is called in the report."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "scheduler" if b"scheduler_process" in command else "child"


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no resident memory")
