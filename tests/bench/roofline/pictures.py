"""Points as pictures, by matplotlib, which is loaded only when they are asked for."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.roofline.point import Machine, Point
from tests.bench.serving.plots import load_matplotlib

__all__ = ["write_pictures"]

_SIZE = (11, 7)
_MARKERS = "os^vDPX*<>"


def write_pictures(folder: Path, points: Sequence[Point], machine: Machine) -> list[Path]:
    """Write PNGs into `folder`, which is made, and return their paths. Raises NoMatplotlib.

    roofline.png   operations a second over operations a byte, below the roofs of the machine
    bandwidth.png  share of the floor's speed over the floor, beside that of a plain copy
    """
    figure = load_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    multiplied = [point for point in points if point.intensity is not None]
    if multiplied:
        fig, axis = _picture(figure)
        _roofs(axis, multiplied, machine)
        written.append(_saved(fig, axis, folder / "roofline.png"))
    bounded = [point for point in points if point.floor_us]
    if bounded:
        fig, axis = _picture(figure)
        _shares(axis, bounded)
        written.append(_saved(fig, axis, folder / "bandwidth.png"))
    return written


def _picture(figure: Any) -> tuple[Any, Any]:
    fig = figure.Figure(figsize=_SIZE, layout="constrained")
    return fig, fig.subplots()


def _saved(fig: Any, axis: Any, path: Path) -> Path:
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    fig.savefig(path, dpi=120)
    return path


def _roofs(axis: Any, points: Sequence[Point], machine: Machine) -> None:
    reached = [point.intensity or 0.0 for point in points]
    low, high = min(*reached, 1.0) / 2, max(*reached, machine.fp8 / machine.bytes) * 2
    for name, rate in (("fp8", machine.fp8), ("bf16", machine.bf16)):
        corner = rate / machine.bytes
        ys = [low * machine.bytes / 1e12, rate / 1e12, rate / 1e12]
        axis.plot([low, corner, high], ys, color="black", linewidth=0.8)
        axis.annotate(name, (high, rate / 1e12), ha="right", va="bottom")
    for label, marker, members in _by_op(points):
        ys = [(point.operations or 0.0) / 1e12 for point in members]
        axis.plot([point.intensity for point in members], ys, marker, label=label)
    axis.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s")


def _shares(axis: Any, points: Sequence[Point]) -> None:
    copies = sorted(
        (point.floor_us, point.floor_us / point.copy_us)
        for point in points
        if point.floor_us and point.copy_us
    )
    if copies:
        xs, ys = zip(*copies, strict=True)
        axis.plot(xs, ys, color="black", linewidth=0.8, label="plain copy")
    for label, marker, members in _by_op(points):
        xs = [point.floor_us for point in members]
        axis.plot(xs, [point.share for point in members], marker, label=label)
    axis.set(xscale="log", ylim=(0, 1.1), xlabel="floor, us", ylabel="share of the floor's speed")


def _by_op(points: Sequence[Point]) -> Iterator[tuple[str, str, list[Point]]]:
    """Yield label, marker and points of each op and backend."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(f"{point.op}, {point.backend}", []).append(point)
    for nth, (label, members) in enumerate(groups.items()):
        yield label, _MARKERS[nth // 10 % len(_MARKERS)], members
