"""How many tokens of an answer are reasoning, for usage."""

from collections.abc import Iterable, Mapping

from runtime.chat.marks import DSML, THINK, THINK_END


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
            elif mark in (THINK_END, DSML):
                self._reasoning = False
            elif mark == THINK:
                self._reasoning = True
