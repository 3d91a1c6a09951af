"""Pictures of a run, by matplotlib, which is loaded only when they are asked for."""

import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.bench.serving.prompt import Asked
from tests.bench.serving.summary import Summary

_WINDOWS = 60


class NoMatplotlib(Exception):
    """Pictures were asked for, and matplotlib is not there."""


def load_matplotlib() -> ModuleType:
    """Return `matplotlib.figure`. Raises NoMatplotlib, which says what to install."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as missing:
        raise NoMatplotlib("--plot needs matplotlib: pip install matplotlib") from missing


def write_plots(folder: Path, asked: Sequence[Asked], groups: dict[str, Summary]) -> list[Path]:
    """Write PNGs into `folder`, which is made, and return their paths. Raises NoMatplotlib."""
    figure = load_matplotlib()
    good = [one for one in asked if one.outcome.error is None]
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        _latencies(figure, folder / "latency.png", good),
        _throughput(figure, folder / "throughput.png", good),
    ]
    if len(groups) > 1:
        written.append(_groups(figure, folder / "groups.png", groups))
    return written


def tokens_over_time(asked: Sequence[Asked]) -> tuple[list[float], list[float]]:
    """Return window ends in seconds since the first request, and output tokens a second in each."""
    arrivals = [
        (now_s, more - fewer)
        for one in asked
        for (_, fewer), (now_s, more) in itertools.pairwise([(0.0, 0), *one.outcome.arrivals])
    ]
    if not arrivals:
        return [], []
    start = min(one.outcome.sent_s for one in asked)
    width = (max(now_s for now_s, _ in arrivals) - start) / _WINDOWS
    counts = [0] * _WINDOWS
    for now_s, tokens in arrivals:
        counts[min(_WINDOWS - 1, int((now_s - start) / width))] += tokens
    return [width * (k + 1) for k in range(_WINDOWS)], [count / width for count in counts]


def _latencies(figure: ModuleType, path: Path, good: Sequence[Asked]) -> Path:
    """Share of requests, and of tokens, that took at most so long."""
    fig, axes = _subplots(figure, 3)
    outcomes = [one.outcome for one in good]
    series = {
        "time to first token": [o.ttft_s for o in outcomes if o.ttft_s is not None],
        "between tokens": [gap for o in outcomes for gap in o.gaps_s()],
        "end to end": [o.e2e_s for o in outcomes],
    }
    for axis, (title, seconds) in zip(axes, series.items(), strict=True):
        ordered = sorted(1e3 * value for value in seconds)
        axis.plot(ordered, [(k + 1) / len(ordered) for k in range(len(ordered))])
        axis.set(title=title, xlabel="ms", ylabel="share", ylim=(0, 1))
        axis.grid(alpha=0.3)
    fig.savefig(path, dpi=120)
    return path


def _throughput(figure: ModuleType, path: Path, good: Sequence[Asked]) -> Path:
    fig, [axis] = _subplots(figure, 1)
    axis.plot(*tokens_over_time(good))
    axis.set(title="output tokens a second", xlabel="s", ylim=(0, None))
    axis.grid(alpha=0.3)
    fig.savefig(path, dpi=120)
    return path


def _groups(figure: ModuleType, path: Path, groups: dict[str, Summary]) -> Path:
    fig, [times, hits] = _subplots(figure, 2)
    names = list(groups)
    for rank in ("p50", "p99"):
        values = [getattr(row.ttft, rank) if row.ttft else 0.0 for row in groups.values()]
        times.plot(names, values, marker="o", label=rank)
    times.set(title="time to first token", ylabel="ms", ylim=(0, None))
    for name, label in (("ideal_share", "ideal"), ("cached_share", "cached")):
        hits.plot(names, [getattr(row, name) or 0.0 for row in groups.values()], label=label)
    hits.set(title="share of input tokens cached", ylim=(0, 1))
    for axis in (times, hits):
        axis.legend()
        axis.grid(alpha=0.3)
    fig.savefig(path, dpi=120)
    return path


def _subplots(figure: ModuleType, count: int) -> tuple[Any, list[Any]]:
    fig = figure.Figure(figsize=(5 * count, 4), layout="constrained")
    return fig, list(fig.subplots(1, count, squeeze=False)[0])
