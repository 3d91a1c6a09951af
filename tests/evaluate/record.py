"""What is kept of an evaluation: a JSON document, a CSV of its cells, figures for a model card."""

import csv
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.evaluate.conditions import Outcome
from tests.evaluate.report import percent
from tests.evaluate.results import Results
from tests.evaluate.tally import by_place

_CELL_COLUMNS = (
    "variant", "condition", "task", "distance", "n", "right", "accuracy", "low", "high",
    "stopped", "valid", "proven",
)  # fmt: skip


def cell_rows(results: Results) -> Iterator[dict[str, Any]]:
    """Yield one row for each cell of each run."""
    for variant, condition in results.runs():
        run = results.of(variant, condition)
        for (row, distance), right in by_place(run).items():
            here = [o for o in run if (o.case.row, o.case.distance) == (row, distance)]
            formed = [one for one in here if one.verdict.valid is not None]
            yield {
                "variant": variant,
                "condition": condition,
                "task": row,
                "distance": distance,
                "n": right.n,
                "right": right.hits,
                "accuracy": round(right.value, 4),
                "low": round(right.low, 4),
                "high": round(right.high, 4),
                "stopped": sum(one.verdict.stopped for one in here),
                "valid": sum(bool(o.verdict.valid) for o in formed) if formed else None,
                "proven": sum(one.happened for one in here),
            }


def write_csv(path: Path, results: Results) -> None:
    """Write the cells, over what was there."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, fieldnames=_CELL_COLUMNS)
        writer.writeheader()
        writer.writerows(cell_rows(results))


def write_json(path: Path, head: Mapping[str, Any], results: Results) -> None:
    """Write `head`, the cells, what changed between runs and every outcome, over what was there."""
    noise = results.noise()
    changes: list[dict[str, Any]] = []
    for variant, condition in results.runs()[1:]:
        paired = results.paired(variant, condition)
        changes.append(
            {
                "variant": variant,
                "condition": condition,
                "n": paired.n,
                "same_tokens": paired.same_tokens,
                "same_bits": paired.same_bits,
                "excused": paired.excused,
                "widest": paired.widest if math.isfinite(paired.widest) else None,
                "lost": paired.lost,
                "gained": paired.gained,
                "points": paired.points,
            }
        )
    document = {
        **head,
        "server": results.server(),
        "margin": results.margin,
        "noise": None if noise is None else dataclasses.asdict(noise),
        "left_out": results.left_out,
        "cells": list(cell_rows(results)),
        "changes": changes,
        "outcomes": [_outcome_row(one) for one in results.outcomes],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def write_card(path: Path, results: Results) -> None:
    """Write the figures that `tests.train.export --measured` puts into the model card."""
    figures = {name: f"{percent(told)} %" for name, _, told in results.goals()}
    path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def _outcome_row(one: Outcome) -> dict[str, Any]:
    answer, check = one.answer, one.case.check
    row: dict[str, Any] = {
        "case": one.case.key,
        "variant": one.variant,
        "condition": one.condition,
        "task": one.case.row,
        "distance": one.case.distance,
        "right": one.verdict.right,
        "valid": one.verdict.valid,
        "proven": one.happened,
        "finish": answer.finish,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "again_tokens": None if one.met is None else one.met.again,
        "output_tokens": len(answer.token_ids),
    }
    if not one.verdict.right:
        asked = one.case.dialogue.turns[one.case.turn - 1].content
        row["question"] = asked[-200:]
        row["expected"] = check.expected or [(c.name, c.arguments) for c in check.calls]
        row["said"] = answer.reply.content
        row["called"] = [(call.name, call.arguments) for call in answer.reply.calls]
    return row
