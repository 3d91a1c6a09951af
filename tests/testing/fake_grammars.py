"""Grammars whose masks come when a test says so, and allow everything unless it says what."""

import numpy as np

from runtime.durations import Durations
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar


class FakeGrammars:
    """Stands in for a pool of grammars.

    allowed   what every mask of a grammar allows
    outputs   by request
    compilations  how long compiling took: never anything
    accepted  tokens that each request's grammar was told of
    instant   every poll brings every mask
    waits     the timeouts of all polls
    untold    tokens that were not sent yet when masks were polled for
    """

    def __init__(self, vocab: int, end_ids: frozenset[int] = frozenset()) -> None:
        self.all = np.full(-(-vocab // 32), -1, dtype=np.int32)
        self.allowed = self.all
        self.outputs: dict[int, GrammarOutput] = {}
        self.accepted: dict[int, list[int]] = {}
        self.end_ids = end_ids
        self.compilations = Durations()
        self.instant = False
        self.waits: list[float] = []
        self.untold: list[int] = []
        self._kept: list[int] = []
        self._due: list[int] = []
        self._failed: list[GrammarOutput] = []

    @property
    def active(self) -> bool:
        """Whether there is any output that has not failed, or whose failure is untold."""
        going = any(output.failure is None for output in self.outputs.values())
        return going or bool(self._failed)

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output."""
        told: list[int] = []

        def accept(token: int) -> None:
            told.append(token)
            self._kept.append(token)

        output = GrammarOutput(request_id, grammar.after, self.all, accept=accept)
        self.outputs[request_id], self.accepted[request_id] = output, told
        return output

    def close(self, output: GrammarOutput) -> None:
        """Forget an output."""
        del self.outputs[output.request_id]

    def flush(self) -> None:
        """Send what was kept."""
        self._kept.clear()

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Bring the masks that are due; return the outputs that failed."""
        self.waits.append(timeout_s)
        self.untold += self._kept
        due = list(self.outputs) if self.instant else self._due
        for output in [self.outputs[i] for i in due if i in self.outputs]:
            if output.allowed is None and output.failure is None:
                output.mask(self.allowed)
        self._due = []
        failed, self._failed = self._failed, []
        return failed

    def answer(self, *request_ids: int) -> None:
        """Have the next poll bring these outputs, or all, the mask that they wait for."""
        self._due = list(request_ids or self.outputs)

    def fail(self, request_id: int, reason: str) -> None:
        """Have an output fail at the next poll."""
        self.outputs[request_id].failure = reason
        self._failed.append(self.outputs[request_id])
