"""What was measured beside what was promised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One figure and its bound; no bound: told, not judged.

    most, least  that it may be
    """

    name: str
    value: float
    unit: str = ""
    most: float = math.inf
    least: float = -math.inf

    @property
    def holds(self) -> bool:
        """Whether it is within its bounds; a figure that could not be measured is not."""
        bounded = math.isfinite(self.most) or math.isfinite(self.least)
        return not bounded or self.least <= self.value <= self.most

    def row(self) -> tuple[str, str, str, str]:
        """Return the cells of the table."""
        bound = ""
        if math.isfinite(self.most):
            bound = f"at most {self.most:,.4g}"
        elif math.isfinite(self.least):
            bound = f"at least {self.least:,.4g}"
        verdict = ("ok" if self.holds else "MISSED") if bound else ""
        return self.name, f"{self.value:,.4g} {self.unit}".strip(), bound, verdict


def table(lines: Sequence[Line]) -> str:
    """Return the lines as a table of plain text."""
    rows = [("figure", "measured", "bound", ""), *(line.row() for line in lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that `share` of all are not above; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
