"""Figures of a measurement: a line of the table, a row of the CSV, what longer contexts add."""

import csv
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from layers.experts.contract import ExpertForm

__all__ = [
    "Added",
    "Figures",
    "OtherColumns",
    "add_rows",
    "added",
    "added_table",
    "check_columns",
    "heading",
    "line",
]


class OtherColumns(Exception):
    """A CSV file has other columns than those that rows would be added under."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One case. What it has no meaning for is None.

    tokens           context of a decode step, or prompt
    chunk            tokens of a prefill step
    ms               of a decode step, or of all prompts
    experts_a_layer  distinct ones that a decode step reads, on average
    kv_floor_ms      of the KV that a decode step reads, a part of floor_ms
    deterministic    whether the network was, which is slower
    """

    phase: str
    experts: ExpertForm
    rows: int
    tokens: int
    ms: float
    tokens_per_s: float
    chunk: int | None = None
    floor_ms: float | None = None
    experts_a_layer: float | None = None
    kv_floor_ms: float | None = None
    deterministic: bool = False

    @property
    def share(self) -> float | None:
        """Return how much of the floor's speed is reached."""
        return None if self.floor_ms is None else self.floor_ms / self.ms


# Behind the share stands what files of old do not have.
_LATER = ("kv_floor_ms", "deterministic")
_FIGURES = tuple(field.name for field in fields(Figures) if field.name not in _LATER)
COLUMNS = ("date", "GPU", "commit", *_FIGURES, "share", *_LATER)


@dataclass(frozen=True, slots=True)
class Added:
    """What a longer context adds to a decode step of as many rows.

    beyond    context of the step that it is added to, in tokens
    ms        more that the step takes; noise can make it negative
    floor_ms  of the KV that it reads besides
    """

    rows: int
    tokens: int
    beyond: int
    ms: float
    floor_ms: float

    @property
    def ratio(self) -> float:
        """Return how many floors the added time is."""
        return self.ms / self.floor_ms


def added(found: Sequence[Figures]) -> Iterator[Added]:
    """Yield what each decode step adds over that of the shortest context with as many rows.

    Nothing is yielded for steps that read no more KV than the shortest.
    """
    steps = [(one, one.kv_floor_ms) for one in found if one.kv_floor_ms is not None]
    for one, floor_ms in steps:
        alike = [other for other in steps if _kind(other[0]) == _kind(one)]
        base, base_floor_ms = min(alike, key=lambda other: other[0].tokens)
        if floor_ms > base_floor_ms:
            more_ms, more_floor_ms = one.ms - base.ms, floor_ms - base_floor_ms
            yield Added(one.rows, one.tokens, base.tokens, more_ms, more_floor_ms)


def _kind(figures: Figures) -> tuple[object, ...]:
    return figures.phase, figures.experts, figures.rows, figures.deterministic


def added_table(found: Sequence[Figures]) -> list[str]:
    """Return lines of `added`, none if no context is longer than another."""
    lines = [
        f"{one.rows:>5}{one.tokens:>9}{one.beyond:>9}{one.ms:>11.4f}{one.floor_ms:>10.4f}"
        f"{one.ratio:>7.2f}"
        for one in added(found)
    ]
    if not lines:
        return []
    names = f"{'rows':>5}{'tokens':>9}{'over':>9}{'added ms':>11}{'floor ms':>10}{'ratio':>7}"
    return [names, *lines]


def heading() -> str:
    """Return the first line of the table."""
    names = f"{'phase':<9}{'experts':<9}{'rows':>5}{'tokens':>9}{'chunk':>8}{'ms':>11}"
    return f"{names}{'tokens/s':>11}{'floor ms':>10}{'share':>7}"


def line(figures: Figures) -> str:
    """Return a line of the table; "det" stands beside the experts of a deterministic network."""
    experts = f"{figures.experts} det" if figures.deterministic else figures.experts
    start = f"{figures.phase:<9}{experts:<9}{figures.rows:>5}{figures.tokens:>9}"
    chunk = "-" if figures.chunk is None else figures.chunk
    middle = f"{chunk:>8}{figures.ms:>11.3f}{figures.tokens_per_s:>11.0f}"
    if figures.floor_ms is None or figures.share is None:
        return f"{start}{middle}{'-':>10}{'-':>7}"
    return f"{start}{middle}{figures.floor_ms:>10.3f}{figures.share:>7.2f}"


def check_columns(target: Path) -> None:
    """Raise OtherColumns for a file that rows cannot be added to."""
    if not target.exists():
        return
    with target.open(newline="", encoding="utf-8") as file:
        there = next(csv.reader(file), [])
    if tuple(there) != COLUMNS:
        raise OtherColumns(f"{target} has other columns than {','.join(COLUMNS)}")


def add_rows(target: Path, found: Sequence[Figures], *, gpu: str, commit: str) -> None:
    """Add a row for each of `found` to a CSV file, made if it is not there.

    Raises OtherColumns.
    """
    check_columns(target)
    fresh = not target.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    start = [datetime.date.today().isoformat(), gpu, commit]
    with target.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        for figures in found:
            values = {**asdict(figures), "share": figures.share}
            told = (values[name] for name in COLUMNS[len(start) :])
            writer.writerow([*start, *map(_rounded, told)])


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value
