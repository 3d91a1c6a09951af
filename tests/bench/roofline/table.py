"""Points as a markdown table."""

from collections.abc import Iterator, Sequence

from tests.bench.roofline.point import Point

__all__ = ["table"]

_COLUMNS = (
    "op",
    "backend",
    "shape",
    "us",
    "floor us",
    "share",
    "x copy",
    "TB/s",
    "TFLOP/s",
    "bound",
)
_WORDS = 3


def table(points: Sequence[Point]) -> Iterator[str]:
    """Yield the lines, with a heading for each GPU."""
    for gpu in dict.fromkeys(point.gpu for point in points):
        yield f"### {gpu}"
        yield ""
        yield "| " + " | ".join(_COLUMNS) + " |"
        yield "|---" * _WORDS + "|---:" * (len(_COLUMNS) - _WORDS - 1) + "|---|"
        for point in points:
            if point.gpu == gpu:
                yield "| " + " | ".join(_cells(point)) + " |"
        yield ""


def _cells(point: Point) -> Iterator[str]:
    yield from (point.op, point.backend, point.shape)
    yield f"{point.us:.2f}"
    yield _number(point.floor_us, ".2f")
    yield _number(point.share, ".0%")
    yield _number(None if point.copy_us is None else point.us / point.copy_us, ".2f")
    yield _number(None if point.bytes is None else point.bytes / 1e12, ".2f")
    yield _number(None if point.operations is None else point.operations / 1e12, ".0f")
    yield point.bound or "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
