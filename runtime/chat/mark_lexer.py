"""Marks in an answer's text: those that stand for tokens, and those that are spelled as text."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from runtime.chat.answer_formats import MARKS

_TOKENS = f"[{''.join(MARKS)}]"


class Lexeme(NamedTuple):
    """A mark, or text without marks.

    text  the characters as they were generated
    mark  the mark that they are, "" for text
    """

    text: str
    mark: str = ""

    @property
    def shown(self) -> str:
        """The text, or a mark's spelling."""
        return MARKS[self.mark] if self.mark else self.text


class MarkLexer:
    """Cuts text into marks and what lies between.

    spelled  mark of each spelling that counts as one in plain text

    The end of a text that may begin a spelling is held back. Pieces of text may be cut anywhere.
    """

    def __init__(self, spelled: Mapping[str, str]) -> None:
        self._spelled = spelled
        self._any = re.compile("|".join([*map(re.escape, spelled), _TOKENS]))
        self._openings = {word[:k] for word in spelled for k in range(1, len(word))}
        self._longest = max(map(len, self._openings), default=0)
        self._held = ""

    def push(self, text: str) -> list[Lexeme]:
        """Return what `text` settles."""
        text, self._held = self._held + text, ""
        lexemes: list[Lexeme] = []
        start = 0
        for found in self._any.finditer(text):
            if found.start() > start:
                lexemes.append(Lexeme(text[start : found.start()]))
            word = found.group()
            lexemes.append(Lexeme(word, self._spelled.get(word, word)))
            start = found.end()
        rest = text[start:]
        # The longest end that may go on to a spelling: a shorter one is an end of it.
        for size in range(min(self._longest, len(rest)), 0, -1):
            if rest[-size:] in self._openings:
                rest, self._held = rest[:-size], rest[-size:]
                break
        return [*lexemes, Lexeme(rest)] if rest else lexemes

    def finish(self) -> list[Lexeme]:
        """Return what was held back."""
        held, self._held = self._held, ""
        return [Lexeme(held)] if held else []
