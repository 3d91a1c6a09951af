"""The picture of an evaluation, by matplotlib, which is loaded only when it is asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.serving.plots import load_matplotlib
from tests.evaluate.conditions import Outcome
from tests.evaluate.results import Results
from tests.evaluate.tally import Share, by_place, share
from tests.evaluate.variants import DEFAULT


def write_plot(path: Path, results: Results) -> None:
    """Write accuracy by distance, by task and by run as one PNG. Raises NoMatplotlib."""
    figure = load_matplotlib().Figure(figsize=(15, 4.5), layout="constrained")
    figure.suptitle(results.server())
    by_distance, by_task, by_run = figure.subplots(1, 3)
    base = results.base()
    _distances(by_distance, base)
    _bars(by_task, "by task, all sizes", _rows(base))
    runs = {
        condition if variant == DEFAULT else variant: share(
            one.verdict.right for one in results.of(variant, condition)
        )
        for variant, condition in results.runs()
    }
    _bars(by_run, "by state of the cache, KV format, network", runs)
    figure.savefig(path, dpi=120)


def _distances(axis: Any, outcomes: Sequence[Outcome]) -> None:
    cells = by_place(outcomes)
    for row in sorted({row for row, place in cells if place is not None}):
        told = sorted((at, cell) for (name, at), cell in cells.items() if name == row and at)
        values = [cell.value for _, cell in told]
        axis.errorbar(
            [at for at, _ in told], values, yerr=_bars_of([c for _, c in told]),
            marker="o", capsize=3, label=row,
        )  # fmt: skip
    axis.set(title="by distance of the answer", xlabel="tokens", ylabel="right", ylim=(0, 1.03))
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend()


def _rows(outcomes: Sequence[Outcome]) -> dict[str, Share]:
    rows = sorted({one.case.row for one in outcomes})
    return {row: share(o.verdict.right for o in outcomes if o.case.row == row) for row in rows}


def _bars(axis: Any, title: str, shares: dict[str, Share]) -> None:
    told = list(shares.values())
    axis.barh(list(shares), [one.value for one in told], xerr=_bars_of(told), capsize=3)
    axis.set(title=title, xlabel="right", xlim=(0, 1.03))
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")


def _bars_of(shares: Sequence[Share]) -> list[list[float]]:
    """Return how far each interval reaches below and above its share."""
    return [[one.value - one.low for one in shares], [one.high - one.value for one in shares]]
