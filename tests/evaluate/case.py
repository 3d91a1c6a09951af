"""One question of the evaluation: a held-out dialogue up to a checked turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.train.dialogue import Check, Dialogue
from tests.train.held_out import PLACED, WHOLE, held_out

Thinking = Literal["off", "low", "high"]

# Tasks asked at every distance; questions about a whole text are so at every length of it.
SPREAD = (*PLACED, *WHOLE)
# About how many tokens are before the question of the others.
_OWN_TOKENS = 40
# What somebody else says in the place of the last message, so that only what precedes it is shared.
_OTHER_WORDS = "Something else: good evening."


@dataclass(frozen=True, slots=True)
class Cell:
    """So many dialogues of a task.

    task      one of `tests.train.held_out.TASKS`
    distance  tokens between an answer's place and the question, or in the text that is asked about;
              None: the task has a size of its own
    """

    task: str
    distance: int | None
    n: int


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and how its reply is judged.

    key       the same in every run with the same seed
    row       which row of the table it counts in: the check's task, but for JSON with a schema
    distance  as in its cell
    turn      number of the turn that is asked for
    """

    key: str
    task: str
    row: str
    distance: int | None
    dialogue: Dialogue
    turn: int

    @property
    def check(self) -> Check:
        """How the reply is judged."""
        check = self.dialogue.turns[self.turn].check
        assert check is not None
        return check

    def body(self) -> dict[str, Any]:
        """Return the request that is judged."""
        return self.dialogue.request(self.turn)

    def earlier(self) -> dict[str, Any] | None:
        """Return the request for the assistant's turn before this one, None for the first."""
        turns = self.dialogue.turns[: self.turn]
        answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
        return self.dialogue.request(answers[-1]) if answers else None

    def sibling(self) -> dict[str, Any]:
        """Return a request with the same history and another last message."""
        body = self.body()
        *history, last = body["messages"]
        return {**body, "messages": [*history, {**last, "content": _OTHER_WORDS}]}


def make_cells(tasks: Sequence[str], distances: Sequence[int], n: int) -> list[Cell]:
    """Return a cell for each distance of the tasks that have one, and for each other task."""
    cells: list[Cell] = []
    for task in tasks:
        places = distances if task in SPREAD else (None,)
        cells += [Cell(task, place, n) for place in places]
    return cells


def make_cases(cells: Sequence[Cell], *, seed: int, thinking: Thinking = "off") -> Iterator[Case]:
    """Yield the cases of all cells; a dialogue with several checked turns makes several.

    The dialogues come from seeds that training never uses (see `held_out`).
    """
    for cell in cells:
        tokens = cell.distance or _OWN_TOKENS
        dialogues = held_out(
            cell.task,
            seed=seed,
            n=cell.n,
            tokens=tokens,
            thinking=thinking != "off",
            effort="low" if thinking == "low" else "high",
        )
        for number, dialogue in enumerate(dialogues):
            for turn in dialogue.checked():
                key = f"{cell.task}-{tokens}-{number}-{turn}"
                row = _row(cell, dialogue, turn)
                yield Case(key, cell.task, row, cell.distance, dialogue, turn)


def _row(cell: Cell, dialogue: Dialogue, turn: int) -> str:
    check = dialogue.turns[turn].check
    assert check is not None
    return cell.task if check.task == "json_format" else check.task
