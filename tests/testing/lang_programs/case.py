"""How one of the programs is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.lang.backend import Backend
from runtime.lang.program import Program
from runtime.lang.state import State


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and what it is run with.

    entries   arguments of each run; several are a batch
    sampling  of generations that leave it open
    native    it needs what OpenAI's API lacks
    """

    program: Program
    entries: Sequence[Mapping[str, Any]] = field(default_factory=lambda: [{}])
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    native: bool = False

    def run(self, backend: Backend) -> list[State]:
        """Return the states, all of them finished; a single entry is run alone."""
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": 6, **self.sampling}
        if len(self.entries) == 1:
            return [self.program.run(**self.entries[0], **sampling, backend=backend)]
        return list(self.program.run_batch(self.entries, **sampling, backend=backend))
