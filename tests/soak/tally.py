"""What the clients of a soak did and got."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.soak.history import History
from tests.testing.traffic import Ask

REMEMBERED = 4000


@dataclass
class Tally:
    """Counts of all clients, and the greedy answers seen so far.

    calls     HTTP requests sent, by kind
    choices   answers that came in full
    tokens    of these
    refused   calls answered 4xx, as they had to be
    left      calls whose client hung up or aborted before the end
    given_up  choices of these
    repeats   greedy tokens that had been told for the same prompt before, and were the same
    history   latencies are kept there
    """

    calls: Counter[str] = field(default_factory=Counter[str])
    choices: int = 0
    tokens: int = 0
    refused: int = 0
    left: int = 0
    given_up: int = 0
    repeats: int = 0
    history: History = field(default_factory=History)
    begun_s: float = field(default_factory=time.monotonic)
    _known: dict[tuple[int, ...], list[int]] = field(
        default_factory=dict[tuple[int, ...], list[int]]
    )

    def took(self, kind: str, begun_s: float, ended_s: float) -> None:
        """Keep how long a call took."""
        call = (ended_s - self.begun_s, ended_s - begun_s)
        self.history.latencies.setdefault(kind, []).append(call)

    def leave(self, ask: Ask) -> None:
        """Count a call that its client left."""
        self.left += 1
        self.given_up += ask.choices

    def answered(self, ask: Ask, answers: list[list[int]]) -> None:
        """Count answers; fail unless a greedy one repeats what was told for the same prompt."""
        self.choices += len(answers)
        self.tokens += sum(map(len, answers))
        if ask.temperature:
            return
        key = tuple(ask.prompt)
        for answer in answers:
            known = self._known.get(key, [])
            both = min(len(known), len(answer))
            assert answer[:both] == known[:both], (
                f"{ask.kind}: {len(ask.prompt)} tokens were answered differently before"
            )
            self.repeats += both
            if len(answer) > len(known):
                self._known[key] = answer
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
