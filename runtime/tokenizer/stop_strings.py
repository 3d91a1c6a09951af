"""Stop strings in a text that arrives in pieces.

An Aho-Corasick automaton over all stop strings: one table look-up per character, whatever the
number and length of the strings and of the text. Its depth is at any time the length of the
longest end of the text that may be the beginning of a stop string, which is what must be held
back.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopTable:
    """The automaton; built once for all choices of a request.

    moves   per state, character -> next state
    fails   per state, the state of its longest proper end that is a beginning
    depths  per state, its length in characters
    ends    per state, the longest stop string that ends there, or ""
    """

    moves: list[dict[str, int]]
    fails: list[int]
    depths: list[int]
    ends: list[str]

    @classmethod
    def build(cls, stops: tuple[str, ...]) -> "StopTable":
        """Return the automaton of `stops`; empty strings are ignored."""
        table = cls([{}], [0], [0], [""])
        for stop in stops:
            table._add(stop)
        table._link()
        return table

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.moves[state]:
                self.moves[state][character] = len(self.moves)
                self.moves.append({})
                self.fails.append(0)
                self.depths.append(self.depths[state] + 1)
                self.ends.append("")
            state = self.moves[state][character]
        self.ends[state] = stop

    def _link(self) -> None:
        waiting = deque(self.moves[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self.moves[state].items():
                self.fails[child] = self.next_state(self.fails[state], character)
                # A longer stop string that ends here wins over the shorter ones inside it.
                self.ends[child] = self.ends[child] or self.ends[self.fails[child]]
                waiting.append(child)

    def next_state(self, state: int, character: str) -> int:
        """Return the state after `character`."""
        while True:
            following = self.moves[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fails[state]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found.

    text   what goes out before the stop string
    rest   the stop string and all that came after it in the same piece
    stop   the string that matched: the first to be complete, of several the longest
    """

    text: str
    rest: str
    stop: str


class StopMatcher:
    """Looks for stop strings in one text."""

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._state = 0
        self._held = ""

    @property
    def held_chars(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def push(self, piece: str, *, armed: bool = True) -> str | StopMatch:
        """Return the text that is safe to give out, or the match that ends it.

        armed   False: a string completed in this piece does not count
        """
        table, state = self._table, self._state
        text = self._held + piece
        for index, character in enumerate(piece, start=len(self._held) + 1):
            state = table.next_state(state, character)
            if table.ends[state] and armed:
                stop = table.ends[state]
                start = index - len(stop)
                return StopMatch(text[:start], text[start:], stop)
        while state and not table.moves[state]:
            state = table.fails[state]  # a whole string that did not count: nothing continues it
        self._state = state
        safe = len(text) - table.depths[state]
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """Return what was held back."""
        text, self._held, self._state = self._held, "", 0
        return text
