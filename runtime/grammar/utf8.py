"""Keeps outputs valid UTF-8: which tokens may come where a character is unfinished.

The compiler's classes of characters let sequences of bytes pass that are no text: surrogates and
over-long spellings. They would reach the client as replacement characters, more of them than the
grammar counted.
"""

import numpy as np

from runtime.grammar.vocabulary import NO_TEXT

_WORD_BITS = 32
START = 0
_TAIL1, _TAIL2, _TAIL3, _E0, _ED, _F0, _F4 = range(1, 8)
# Source: the Unicode standard's table of well-formed UTF-8. State -> (first, last byte, next).
_STEPS: dict[int, tuple[tuple[int, int, int], ...]] = {
    START: (
        (0x00, 0x7F, START),
        (0xC2, 0xDF, _TAIL1),
        (0xE0, 0xE0, _E0),
        (0xE1, 0xEC, _TAIL2),
        (0xED, 0xED, _ED),
        (0xEE, 0xEF, _TAIL2),
        (0xF0, 0xF0, _F0),
        (0xF1, 0xF3, _TAIL3),
        (0xF4, 0xF4, _F4),
    ),
    _TAIL1: ((0x80, 0xBF, START),),
    _TAIL2: ((0x80, 0xBF, _TAIL1),),
    _TAIL3: ((0x80, 0xBF, _TAIL2),),
    _E0: ((0xA0, 0xBF, _TAIL1),),
    _ED: ((0x80, 0x9F, _TAIL1),),
    _F0: ((0x90, 0xBF, _TAIL2),),
    _F4: ((0x80, 0x8F, _TAIL2),),
}


class Utf8Guard:
    """What each token does to a text that may end inside a character.

    masks  [states, ceil(V / 32)] int32, the tokens that leave the text well-formed so far
    """

    def __init__(self, vocabulary: list[bytes]) -> None:
        """`vocabulary` as `token_bytes` returns it; control tokens stand between characters."""
        self._vocabulary = vocabulary
        self.masks = np.stack([self._mask(state) for state in range(len(_STEPS))])

    def follow(self, state: int, token: int) -> int | None:
        """Return the state after a token, None where the bytes are no text."""
        data = self._vocabulary[token]
        if data.startswith(NO_TEXT):
            data = b""
        if state == START and data.isascii():
            return START
        if not data:
            return None
        for byte in data:
            found = [after for first, last, after in _STEPS[state] if first <= byte <= last]
            if not found:
                return None
            [state] = found
        return state

    def _mask(self, state: int) -> np.ndarray:
        bits = np.zeros(-(-len(self._vocabulary) // _WORD_BITS) * _WORD_BITS, dtype=np.uint8)
        for token in range(len(self._vocabulary)):
            bits[token] = self.follow(state, token) is not None
        return np.packbits(bits, bitorder="little").view("<i4")
