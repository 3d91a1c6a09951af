"""The logs of a run: one CSV row an interval, and one a question paper."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogRow:
    """Means over the steps since the row before, unless said otherwise.

    step          steps done
    tokens        seen since the beginning
    seconds       spent training since the beginning
    loss          what was descended, without the indexer's and the routers' part
    answer_loss   cross entropy of tokens of weight 1; NaN if there were none
    text_loss     of the other tokens
    accuracy      share of tokens of weight 1 that are the argmax
    index_kl      the indexer's divergence, averaged over layers; NaN if it was not trained
    recall        of attention by the indexer's choice, of the last probe; NaN where all is chosen
    grad_norm     before clipping, the last step's, all but the indexer
    rate          learning rate of the last step
    load_least    share of its layer's tokens of the least chosen expert, of the last step
    load_most     likewise of the most chosen one
    """

    step: int
    phase: str
    length: int
    tokens: int
    seconds: float
    loss: float
    answer_loss: float
    text_loss: float
    accuracy: float
    index_kl: float
    recall: float
    grad_norm: float
    rate: float
    tokens_per_s: float
    load_least: float
    load_most: float


@dataclass(frozen=True, slots=True)
class ExamRow:
    """What the run knew of a task.

    length  tokens of a row
    hidden  the ratios whose blocks were hidden, such as "128"; "" for none
    asked   questions; right: the share of them that was
    """

    step: int
    phase: str
    length: int
    task: str
    hidden: str
    asked: int
    right: float


class RunLog:
    """A CSV file that rows of one kind are added to."""

    def __init__(
        self, path: Path, *, until: int, kind: type[LogRow] | type[ExamRow] = LogRow
    ) -> None:
        """Open `path`; rows past step `until`, of a slice that was not saved, are dropped."""
        self._path = path
        self._columns = [field.name for field in fields(kind)]
        kept: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= until]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(kept)

    def add(self, row: LogRow | ExamRow) -> None:
        """Write a row."""
        shown = {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in asdict(row).items()
        }
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(shown)


def read_log(path: Path) -> list[dict[str, str]]:
    """Return the rows of a log, by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
