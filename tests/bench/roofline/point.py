"""Measurements as the benchmarks keep them, read back from their CSV files.

A file is known by its columns: those of `tests.bench.kernels` (ops that move bytes), of
`tests.bench.kernels.bench_gemm` (ops that multiply) and of `tests.bench.network` (whole steps).
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "Point", "UnknownColumns", "read_points"]

# By how much a rounded floor may differ from the time of the bytes alone.
_ROUNDING = 0.02


class UnknownColumns(Exception):
    """A CSV file is of none of the benchmarks."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the card reaches at best, a second: bytes of a large copy, operations of a product."""

    bytes: float = 4.25e12
    fp8: float = 1.389e15
    bf16: float = 0.772e15


@dataclass(frozen=True, slots=True)
class Point:
    """One op, or one step of the network, at one shape. What was not measured is None.

    floor_us  the shortest time that the machine's limits leave
    copy_us   of a plain copy of as many bytes
    bytes, operations   a second, as reached
    bound     which limit the floor is of: "memory" or "compute"
    """

    gpu: str
    commit: str
    op: str
    backend: str
    shape: str
    us: float
    floor_us: float | None = None
    copy_us: float | None = None
    bytes: float | None = None
    operations: float | None = None
    bound: str | None = None

    @property
    def share(self) -> float | None:
        """How much of the speed that the machine allows is reached."""
        return None if self.floor_us is None else self.floor_us / self.us

    @property
    def intensity(self) -> float | None:
        """Operations a byte."""
        if not self.bytes or not self.operations:
            return None
        return self.operations / self.bytes

    @property
    def key(self) -> tuple[str, ...]:
        """What another measurement of the same has in common with this one."""
        return self.gpu, self.op, self.backend, self.shape


def read_points(paths: Iterable[Path], machine: Machine) -> list[Point]:
    """Return the points of all files; of several measurements of the same, the last.

    Raises UnknownColumns for a file of something else, OSError for one that cannot be read.
    """
    found: dict[tuple[str, ...], Point] = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            read = _reader(reader.fieldnames or (), path)
            for row in reader:
                point = read(row, machine)
                found.pop(point.key, None)
                found[point.key] = point
    return list(found.values())


_Row = dict[str, str]
_Read = Callable[[_Row, Machine], Point]


def _reader(columns: Iterable[str], path: Path) -> _Read:
    names = set(columns)
    for wanted, read in (("copy us", _moved), ("TFLOP/s", _multiplied), ("floor_ms", _step)):
        if {"GPU", "commit", wanted} <= names:
            return read
    raise UnknownColumns(f"{path} has not the columns of a benchmark of ops or of the network")


def _moved(row: _Row, machine: Machine) -> Point:
    us, floor_us = float(row["us"]), float(row["floor us"])
    return Point(
        *(row[name] for name in ("GPU", "commit", "op", "backend", "shape")),
        us=us,
        floor_us=floor_us,
        copy_us=float(row["copy us"]),
        bytes=floor_us / us * machine.bytes,
        bound="memory",
    )


def _multiplied(row: _Row, machine: Machine) -> Point:
    us, floor_us = float(row["us"]), float(row["floor us"])
    rate = float(row["TB/s"]) * 1e12
    moving_us = rate / machine.bytes * us
    return Point(
        *(row[name] for name in ("GPU", "commit", "op", "backend", "shape")),
        us=us,
        floor_us=floor_us,
        bytes=rate,
        operations=float(row["TFLOP/s"]) * 1e12,
        bound="memory" if moving_us >= (1 - _ROUNDING) * floor_us else "compute",
    )


def _step(row: _Row, machine: Machine) -> Point:
    us = float(row["ms"]) * 1e3
    floor_us = float(row["floor_ms"]) * 1e3 if row["floor_ms"] else None
    chunk = f" chunk={row['chunk']}" if row["chunk"] else ""
    return Point(
        gpu=row["GPU"],
        commit=row["commit"],
        op=row["phase"],
        backend=row["experts"] + (" det" if row.get("deterministic") == "True" else ""),
        shape=f"B={row['rows']} tokens={row['tokens']}{chunk}",
        us=us,
        floor_us=floor_us,
        bytes=None if floor_us is None else floor_us / us * machine.bytes,
        bound=None if floor_us is None else "memory",
    )
