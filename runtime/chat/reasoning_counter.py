"""How many tokens of an answer are reasoning, for usage."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from runtime.chat.answer_formats import (
    BLOCK,
    CALL,
    CALLS,
    CONSTRAIN,
    MESSAGE,
    OPEN,
    PYTHON,
)
from runtime.chat.marks import DSML, THINK, THINK_END

_ENDS = frozenset((THINK_END, DSML, OPEN, PYTHON, CALLS, BLOCK, CALL))


class Counter(Protocol):
    """Counts reasoning; `tokens` so far."""

    tokens: int

    def count(self, token_ids: Iterable[int]) -> None:
        """Take the answer's next tokens."""
        ...


class ReasoningCounter:
    """Counts the tokens between the marks, the marks themselves left out; a call ends them, too.

    marks      mark of each token id that has one
    reasoning  whether the answer begins inside the reasoning
    tokens     so far
    """

    def __init__(self, marks: Mapping[int, str], *, reasoning: bool) -> None:
        self._marks = marks
        self._reasoning = reasoning
        self.tokens = 0

    def count(self, token_ids: Iterable[int]) -> None:
        """Take the answer's next tokens."""
        for token_id in token_ids:
            mark = self._marks.get(token_id)
            if mark is None:
                self.tokens += self._reasoning
            elif mark in _ENDS:
                self._reasoning = False
            elif mark == THINK:
                self._reasoning = True


class HarmonyCounter:
    """Counts the tokens of messages in the channel `analysis`.

    marks        mark of each token id that has one
    analysis_id  token that names the channel
    tokens       so far
    """

    def __init__(self, marks: Mapping[int, str], analysis_id: int | None) -> None:
        self._marks = marks
        self._analysis_id = analysis_id
        self._named = self._reasoning = False
        self.tokens = 0

    def count(self, token_ids: Iterable[int]) -> None:
        """Take the answer's next tokens."""
        for token_id in token_ids:
            mark = self._marks.get(token_id)
            if mark is None:
                self.tokens += self._reasoning
                self._named = self._named or token_id == self._analysis_id
            elif mark == MESSAGE:
                self._reasoning, self._named = self._named, False
            elif mark != CONSTRAIN:
                # The channel's name follows its mark; anything else ends the message.
                self._reasoning = self._named = False
