"""The table of measured figures in README: Umbra's runs beside SGLang's, from the CSV files."""

import csv
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
CONFIGURATION = "fp4 and fp8 experts, chunks of 16384, client on aiohttp"
RUNS = 6

# What a row says, the measurement and its columns, and how many decimals they have.
_ROWS = (
    ("8k prompt alone: time to first token, ms", "prefill 8192 x 1", ("TTFT p50 ms",), 0),
    ("8k prompts, eight at once: tokens/s", "prefill 8192 x 8", ("tokens/s",), 0),
    ("64k prompt alone: time to first token, ms", "prefill 65536 x 1", ("TTFT p50 ms",), 0),
    ("64k prompts, eight at once: tokens/s", "prefill 65536 x 8", ("tokens/s",), 0),
    *(
        (f"decode at 8k, {rows}: ms between tokens, p50 / p99", f"decode x {number}", columns, 2)
        for number, rows in ((1, "1 row"), (16, "16 rows"), (64, "64 rows"), (128, "128 rows"))
        for columns in (("ITL p50 ms", "ITL p99 ms"),)
    ),
    ("32 conversations of 4 turns, shared 8k prompt: seconds", "turns", ("s",), 2),
    *(
        (f"turn {turn}: time to first token, ms, p50 / p99", f"turn {turn}", columns, 0)
        for turn in range(1, 5)
        for columns in (("TTFT p50 ms", "TTFT p99 ms"),)
    ),
    ("prompt tokens from the cache, % (90.06 possible)", "turns", ("cached %",), 2),
)
_MORE_IS_BETTER = ("tokens/s", "cached %")


def measured_table() -> str:
    """Return a markdown table: medians of Umbra's last runs, SGLang's best configuration."""
    ours = [row for row in _read("umbra_h200.csv") if row["configuration"] == CONFIGURATION]
    theirs = _read("sglang_h200.csv")
    lines = ["| | Umbra | SGLang |", "|---|---|---|"]
    for text, run, columns, decimals in _ROWS:
        cells = (
            " / ".join(
                f"{pick(column, _values(rows, run, column)):,.{decimals}f}" for column in columns
            )
            for rows, pick in ((ours, _median), (theirs, _best))
        )
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _values(rows: Iterable[dict[str, str]], run: str, column: str) -> list[float]:
    return [float(row[column]) for row in rows if row["run"] == run and row[column]]


def _median(column: str, values: list[float]) -> float:
    return statistics.median(values[-RUNS:])


def _best(column: str, values: list[float]) -> float:
    best: Callable[[list[float]], float] = max if column in _MORE_IS_BETTER else min
    return best(values)
