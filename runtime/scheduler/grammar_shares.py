"""One pool of grammars for several replicas: each hears of the failures of its own requests."""

from collections.abc import Sequence

from runtime.durations import Durations
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from runtime.scheduler.grammar_gate import Grammars

__all__ = ["GrammarShare", "share_grammars"]


class GrammarShare:
    """What one replica sees of a pool of grammars.

    Whichever share polls takes in the masks of all: outputs of other replicas have theirs then.
    """

    def __init__(self, grammars: Grammars, shares: "dict[int, GrammarShare]") -> None:
        """Use `share_grammars`.

        shares  by request, of all outputs that are open
        """
        self._grammars = grammars
        self._shares = shares
        self._failed: list[GrammarOutput] = []

    @property
    def active(self) -> bool:
        """Whether there is any output, of this replica or another."""
        return self._grammars.active or bool(self._failed)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that only a complete output may go on with."""
        return self._grammars.end_ids

    @property
    def compilations(self) -> Durations:
        """How long compiling took, for each grammar of the pool."""
        return self._grammars.compilations

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output."""
        output = self._grammars.open(request_id, grammar)
        self._shares[request_id] = self
        return output

    def close(self, output: GrammarOutput) -> None:
        """Forget an output."""
        self._grammars.close(output)
        del self._shares[output.request_id]
        self._failed = [other for other in self._failed if other is not output]

    def flush(self) -> None:
        """Send the tokens that outputs have taken."""
        self._grammars.flush()

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Take in masks; return outputs of this replica that have failed."""
        for output in self._grammars.poll(0.0 if self._failed else timeout_s):
            share = self._shares.get(output.request_id)
            if share is not None:
                share._failed.append(output)
        failed, self._failed = self._failed, []
        return failed


def share_grammars(grammars: Grammars | None, count: int) -> Sequence[Grammars | None]:
    """Return what each of `count` replicas sees of the grammars; one replica sees the pool."""
    if grammars is None or count == 1:
        return [grammars] * count
    shares: dict[int, GrammarShare] = {}
    return [GrammarShare(grammars, shares) for _ in range(count)]
