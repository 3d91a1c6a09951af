"""What a run knows while it goes on: held-out questions, by task, at the length of its phase.

Answers are not generated: a question counts as right if every token of the known answer is the
likeliest after those before it.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.train.held_out import held_out
from tests.train.render import SAID, Renderer, Row

# Tasks asked, and the questions in a row of each.
EXAMINED: Mapping[str, int] = MappingProxyType(
    {"votes": 2, "facts": 4, "pairs": 4, "needle": 1, "overview": 3}
)
# Layers whose blocks are hidden while a task is asked again, to see what it needs.
HIDDEN: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType({"votes": ((128,), (4,))})
_TOKENS = 1 << 16
_MOST_ROWS = 32
# Of a row, for what is asked at its end.
_ROOM = 200


@dataclass(frozen=True, slots=True)
class Paper:
    """Rows of one task.

    ids    [n, T] int64
    marks  [n, T] int64: 0, or the number of the checked answer that a token is of, from 1
    """

    task: str
    ids: npt.NDArray[np.int64]
    marks: npt.NDArray[np.int64]


class Exams:
    """Papers of any length, the same for the same seed; a thread makes them ahead of time."""

    def __init__(self, tokenizer: Path, *, seed: int = 0, rows: int = _MOST_ROWS) -> None:
        """Keep what papers are made with.

        tokenizer  path of tokenizer.json
        rows       most rows of a paper; long ones have fewer
        """
        self._renderer = Renderer(Tokenizer.from_file(str(tokenizer)))
        self._seed, self._rows = seed, rows
        self._maker = ThreadPoolExecutor(1)
        self._made: dict[int, Future[list[Paper]]] = {}

    def prepare(self, length: int) -> None:
        """Begin to make the papers of rows of `length` tokens."""
        if length not in self._made:
            self._made[length] = self._maker.submit(self._make, length)

    def papers(self, length: int) -> list[Paper]:
        """Return the papers of a length; wait for them."""
        self.prepare(length)
        return self._made[length].result()

    def _make(self, length: int) -> list[Paper]:
        count = max(2, min(self._rows, _TOKENS // length))
        return [
            _paper(self._renderer, task, list(self._asked(task, length, count)), length)
            for task in EXAMINED
        ]

    def _asked(self, task: str, length: int, count: int) -> Iterator[Row]:
        # A dialogue's size is an estimate; its questions stand at its end, and must be in the row.
        for factor in (0.94, 0.8, 0.65, 0.5, 0.3):
            dialogues = held_out(
                task,
                seed=self._seed,
                n=count,
                tokens=max(40, int(factor * length) - _ROOM),
                questions=EXAMINED[task],
            )
            made = list(dialogues)
            for dialogue, row in zip(made, self._renderer.rows(made, length), strict=True):
                if count and row is not None and len(row.dialogue.turns) == len(dialogue.turns):
                    count -= 1
                    yield row


def _paper(renderer: Renderer, task: str, rows: list[Row], length: int) -> Paper:
    ids, _ = renderer.packed(rows, length)
    marks = np.zeros(ids.shape, np.int64)
    for number, row in enumerate(rows):
        said = np.asarray(row.weights) == SAID
        # Answers are stretches of such tokens, in the order of the assistant's turns.
        begins = said & ~np.concatenate(([False], said[:-1]))
        stretch = np.where(said, np.cumsum(begins), 0)
        answers = [turn for turn in row.dialogue.turns if turn.role == "assistant"]
        for place, turn in enumerate(answers, start=1):
            if turn.check is not None:
                marks[number, : len(stretch)][stretch == place] = place
    return Paper(task, ids.astype(np.int64), marks)


def right_answers(logits: Tensor, paper: Paper, rows: slice) -> tuple[int, int]:
    """Return (how many of the answers in some rows are right, how many there are).

    logits  [B, T, vocab] of those rows
    """
    wanted = torch.from_numpy(paper.ids[rows, 1:]).to(logits.device)
    marks = torch.from_numpy(paper.marks[rows, 1:]).to(logits.device)
    wrong = (logits[:, :-1].argmax(-1) != wanted) & (marks > 0)
    most = int(paper.marks.max()) + 1
    rowed = marks + most * torch.arange(len(marks), device=marks.device).unsqueeze(1)
    asked = rowed[marks > 0].unique()
    missed = rowed[wrong].unique()
    return len(asked) - len(missed), len(asked)
