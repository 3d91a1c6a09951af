"""Figures of a measurement: a line of the table, a row of the CSV."""

import csv
import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from layers.fused.expert_form import ExpertForm

__all__ = ["Figures", "add_rows", "heading", "line"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One case. What it has no meaning for is None.

    tokens           context of a decode step, or prompt
    chunk            tokens of a prefill step
    ms               of a decode step, or of all prompts
    experts_a_layer  distinct ones that a decode step reads, on average
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

    @property
    def share(self) -> float | None:
        """Return how much of the floor's speed is reached."""
        return None if self.floor_ms is None else self.floor_ms / self.ms


_FIGURES = tuple(field.name for field in fields(Figures))
COLUMNS = ("date", "GPU", "commit", *_FIGURES, "share")


def heading() -> str:
    """Return the first line of the table."""
    names = f"{'phase':<9}{'experts':<9}{'rows':>5}{'tokens':>9}{'chunk':>8}{'ms':>11}"
    return f"{names}{'tokens/s':>11}{'floor ms':>10}{'share':>7}"


def line(figures: Figures) -> str:
    """Return a line of the table."""
    start = f"{figures.phase:<9}{figures.experts:<9}{figures.rows:>5}{figures.tokens:>9}"
    chunk = "-" if figures.chunk is None else figures.chunk
    middle = f"{chunk:>8}{figures.ms:>11.3f}{figures.tokens_per_s:>11.0f}"
    if figures.floor_ms is None or figures.share is None:
        return f"{start}{middle}{'-':>10}{'-':>7}"
    return f"{start}{middle}{figures.floor_ms:>10.3f}{figures.share:>7.2f}"


def add_rows(target: Path, found: Sequence[Figures], *, gpu: str, commit: str) -> None:
    """Add a row for each of `found` to a CSV file, made if it is not there."""
    fresh = not target.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    start = [datetime.date.today().isoformat(), gpu, commit]
    with target.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        for figures in found:
            values = [*asdict(figures).values(), figures.share]
            writer.writerow([*start, *(_rounded(value) for value in values)])


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value
