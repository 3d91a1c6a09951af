"""Pictures of simulations, by matplotlib, which is loaded only when they are asked for."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.bench.replicas.report import Cell
from tests.bench.serving.plots import load_matplotlib

_MARKERS = "osD^vPX*"


def write_plots(folder: Path, cells: Sequence[Cell]) -> list[Path]:
    """Write SVGs into `folder`, which is made; return their paths. Raises NoMatplotlib."""
    figure = load_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _figure(figure, folder / "hits_and_tails.svg", cells, _hits_and_tails),
        _figure(figure, folder / "ttft.svg", cells, _distribution),
    ]


def _figure(figure: ModuleType, path: Path, cells: Sequence[Cell], draw: Any) -> Path:
    """Draw one panel for each cell, in up to two columns."""
    columns = min(2, len(cells))
    rows = -(-len(cells) // columns)
    picture = figure.Figure(figsize=(6 * columns, 4 * rows), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False).flat
    for panel, cell in zip(panels, cells, strict=False):
        draw(panel, cell)
        panel.set_title(cell.name, fontsize=10)
    panels[0].legend(fontsize=8)
    for panel in list(panels)[len(cells) :]:
        panel.axis("off")
    picture.savefig(path)
    return path


def _hits_and_tails(panel: Any, cell: Cell) -> None:
    """Draw each policy at its hit rate and its 99th percentile of the time to first token."""
    for (policy, outcome), marker in zip(cell.outcomes.items(), _MARKERS, strict=False):
        panel.plot([outcome.hit], [outcome.percentile(0.99)], marker, label=policy)
    panel.set_xlabel("share of prompt tokens from the cache")
    panel.set_ylabel("p99 of the time to first token, s")
    panel.set_xlim(left=0)
    panel.set_yscale("log")


def _distribution(panel: Any, cell: Cell) -> None:
    """Draw the share of requests whose first token came within so many seconds."""
    for policy, outcome in cell.outcomes.items():
        seconds = outcome.ttft_s
        panel.plot(seconds, np.arange(1, len(seconds) + 1) / len(seconds), label=policy)
    panel.set_xlabel("time to first token, s")
    panel.set_ylabel("share of requests")
    panel.set_xscale("log")
