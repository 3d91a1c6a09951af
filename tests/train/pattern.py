"""Sentences with holes: "The {adjective} {noun} is {colour}." with each hole filled at random.

An article right before a hole fits whatever fills it: "a {animal}" can become "an owl".
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

from tests.train.lexicon import article

_HOLE = re.compile(r"((?:\b[aA] )?\{\w+\})")


class Pattern:
    """A sentence with holes, cut up once so that filling it takes microseconds.

    Raises KeyError for a hole that `lists` has no words for.
    """

    def __init__(self, text: str, lists: Mapping[str, Sequence[str]]) -> None:
        pieces = _HOLE.split(text)
        self._texts = pieces[0::2]
        self._lists = [_words(hole, lists) for hole in pieces[1::2]]

    def fill(self, rng: Random) -> str:
        """Return the sentence with a word of its list in each hole."""
        parts = [self._texts[0]]
        for words, text in zip(self._lists, self._texts[1:], strict=True):
            parts.append(words[int(rng.random() * len(words))])
            parts.append(text)
        return "".join(parts)


def _words(hole: str, lists: Mapping[str, Sequence[str]]) -> Sequence[str]:
    before, _, name = hole[:-1].partition("{")
    if not before:
        return lists[name]
    return [f"{before[0]}{article(word)[1:]} {word}" for word in lists[name]]
