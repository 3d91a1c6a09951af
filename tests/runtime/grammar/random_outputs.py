"""Writes outputs that a compiled grammar lets through, token by token, as a model might."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from xgrammar import CompiledGrammar, GrammarMatcher

from runtime.grammar.nursery import NurserySettings, load_tools
from runtime.grammar.utf8 import START
from runtime.grammar.vocabulary import load_token_bytes

# First bytes of tokens that bring an output to its end, the soonest first; then any other.
_CLOSING = {b"}": 0, b"]": 1, b'"': 2}
_OTHER = 3
_MOST_REPEATS_LOG = 5.1


class Stuck(Exception):
    """Nothing may follow an output that has not ended; holds its last bytes."""


class Writer:
    """Writes at random with the tokens of a checkpoint."""

    def __init__(self, folder: Path, vocab_size: int, end: int) -> None:
        self._tools = load_tools(NurserySettings(str(folder), vocab_size, [end]))
        self._bytes = load_token_bytes(folder, vocab_size)
        self._end = end
        self._ranks = np.array([_CLOSING.get(token[:1], _OTHER) for token in self._bytes])
        self._ranks[end] = -1

    @property
    def compiler(self) -> Any:
        """The compiler of the checkpoint's vocabulary."""
        return self._tools.compiler

    def write(self, compiled: CompiledGrammar, pick: random.Random, steps: int = 150) -> str | None:
        """Return a whole output; None where none was found in so many steps, and thrice as many
        that look for its end. Raises Stuck.
        """
        output = _Output(self, compiled)
        end_chance, repeat_chance = pick.choice([0.02, 0.1, 0.4]), pick.choice([0, 0.02, 0.1])
        for step in range(4 * steps):
            allowed = output.allowed()
            closing = step > steps or pick.random() < end_chance
            token = self._closest(allowed, pick) if closing else int(pick.choice([*allowed]))
            if token == self._end:
                return output.text()
            if not output.take(token):
                raise Stuck(f"token {token} is in the mask of what it may not follow")
            fills = closing and self._ranks[token] == _OTHER
            if fills or pick.random() < repeat_chance:
                output.take_again(token, int(10 ** pick.uniform(0, _MOST_REPEATS_LOG)))
        return None

    def _closest(self, allowed: np.ndarray, pick: random.Random) -> int:
        """Return one of the tokens that bring the end soonest."""
        ranks = self._ranks[allowed]
        return int(pick.choice([*allowed[ranks == ranks.min()]]))

    def mask(self, matcher: GrammarMatcher, state: int) -> np.ndarray:
        """Return the tokens that may follow."""
        bits = np.zeros((1, self._tools.guard.masks.shape[1]), dtype=np.int32)
        matcher.fill_next_token_bitmask(bits, 0)
        bits[0] &= self._tools.guard.masks[state]
        return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))

    def follow(self, state: int, token: int) -> int | None:
        """Return how a token leaves the text: inside which character; None where it is none."""
        return self._tools.guard.follow(state, token)

    def spelling(self, token: int) -> bytes:
        """Return a token's bytes."""
        return self._bytes[token]


class _Output:
    """An output so far."""

    def __init__(self, writer: Writer, compiled: CompiledGrammar) -> None:
        self._writer = writer
        self._matcher = GrammarMatcher(compiled)
        self._state = START
        self._parts: list[bytes] = []

    def allowed(self) -> np.ndarray:
        """Return the tokens that may follow. Raises Stuck."""
        allowed = self._writer.mask(self._matcher, self._state)
        if not len(allowed):
            raise Stuck(repr(b"".join(self._parts)[-300:]))
        return allowed

    def take(self, token: int) -> bool:
        """Go on with a token; False where it may not follow."""
        state = self._writer.follow(self._state, token)
        if state is None or not self._matcher.accept_token(token):
            return False
        self._state = state
        self._parts.append(self._writer.spelling(token))
        return True

    def take_again(self, token: int, times: int) -> None:
        """Go on with a token of whole characters so often, or as often as it may follow."""
        spelling = self._writer.spelling(token)
        if not spelling or self._state != START or self._writer.follow(START, token) != START:
            return
        left = count = times // len(spelling)
        while count:
            count = min(count, left)
            if count and self._matcher.accept_string(spelling * count):
                self._parts.append(spelling * count)
                left -= count
            else:
                count //= 2

    def text(self) -> str:
        """Return the whole text."""
        return b"".join(self._parts).decode()
