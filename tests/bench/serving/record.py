"""What is kept of a run: a JSON document, and a row of a CSV file."""

import csv
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.serving.prompt import Asked
from tests.bench.serving.summary import Summary

RATES = ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "tokens_per_s")
LATENCIES = ("ttft", "tpot", "itl", "e2e")
RANKS = ("mean", "p50", "p90", "p99")


def figures(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON values: counts, rates, and latencies in milliseconds."""
    return dataclasses.asdict(summary) | {name: getattr(summary, name) for name in RATES}


def request_row(asked: Asked) -> dict[str, Any]:
    """Return one request as JSON values; seconds by the client's clock."""
    outcome = asked.outcome
    return {
        "group": asked.call.group,
        "sent_s": outcome.sent_s,
        "ttft_s": outcome.ttft_s,
        "e2e_s": outcome.e2e_s,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.generated,
        "gaps_s": outcome.gaps_s(),
        "error": outcome.error,
    }


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write `document`, over what was there."""
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def append_csv(path: Path, head: Mapping[str, Any], summary: Summary) -> None:
    """Add a row: what `head` says of the run, then its figures; the header if the file is new.

    Raises ValueError where the file has other columns.
    """
    told = figures(summary)
    row = dict(head)
    for name in ("requests", "errors", "duration_s", "input_tokens", "output_tokens", *RATES):
        row[name] = told[name]
    for name in ("cached_tokens", "cached_share", "ideal_share", "concurrency"):
        row[name] = told[name]
    row["steady_tokens_per_s"] = told["steady_tokens_per_s"]
    for name in LATENCIES:
        for rank in RANKS:
            row[f"{name}_{rank}_ms"] = (told[name] or {}).get(rank)
    known: list[str] | None = None
    if path.exists() and path.stat().st_size:
        with path.open(newline="", encoding="utf-8") as file:
            known = next(csv.reader(file))
    if known is not None and known != list(row):
        raise ValueError(f"{path} has other columns than this benchmark writes")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if known is None:
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
