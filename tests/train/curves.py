"""Draw the curves of a run: `python -m tests.train.curves RUN/log.csv curves.png`.

Needs matplotlib, which nothing else here does.
"""

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

from tests.train.run_log import read_log

_PANELS = (
    ("loss", ("answer_loss", "text_loss")),
    ("accuracy", ("accuracy", "recall")),
    ("indexer divergence", ("index_kl",)),
    ("gradient norm", ("grad_norm",)),
    ("tokens a second", ("tokens_per_s",)),
    ("share of an expert", ("load_least", "load_most")),
)


def draw(log: Path, picture: Path) -> None:
    """Draw every panel over tokens seen; phases change at dotted lines."""
    plots: Any = importlib.import_module("matplotlib.pyplot")
    rows = read_log(log)
    tokens = [int(row["tokens"]) / 1e6 for row in rows]
    changes = [tokens[i] for i in range(1, len(rows)) if rows[i]["phase"] != rows[i - 1]["phase"]]
    figure, axes = plots.subplots(len(_PANELS), 1, figsize=(9, 14), sharex=True)
    for axis, (title, columns) in zip(axes, _PANELS, strict=True):
        for column in columns:
            values = [float(row[column]) for row in rows]
            if not all(math.isnan(value) for value in values):
                axis.plot(tokens, values, label=column, linewidth=0.8)
        for change in changes:
            axis.axvline(change, linestyle=":", color="grey")
        axis.set_ylabel(title)
        axis.set_yscale("log" if title == "loss" else "linear")
        axis.legend(loc="best")
    axes[-1].set_xlabel("million tokens")
    figure.tight_layout()
    figure.savefig(picture, dpi=90)
    plots.close(figure)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.train.curves", description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(options.log, options.picture)


if __name__ == "__main__":
    _main()
