"""The channels of an answer: which of its characters are reasoning, content or tool calls.

In V4's format this is the only place that knows where one channel ends and another begins.
`AnswerParser` makes parts of the channels; the search for stop strings and the log-probabilities of
single tokens need the channels alone.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.marks import DSML, SPELLING, THINK, THINK_END

Channel = Literal["reasoning", "content", "call"]

_MARK = re.compile(f"([{THINK}{THINK_END}{DSML}])")
# What may turn out to be the beginning of a block: `\n\n<` before its mark.
_OPENING = re.compile(r"\n{0,2}(?:</?)?\Z")


class Run(NamedTuple):
    """Consecutive characters of an answer that belong together.

    channel  None: they belong to no channel, such as a mark that ends the reasoning
    text     the characters as they were generated, marks included
    shown    what a client sees of them in that channel: `text`, the spelling of a mark, or ""
    """

    channel: Channel | None
    text: str
    shown: str


class Span(NamedTuple):
    """Consecutive characters of an answer.

    run    which channel they belong to, and what of them is shown
    parts  what they settle of a call
    """

    run: Run
    parts: tuple[CallPiece | InvalidCall, ...] = ()


class Splitter(Protocol):
    """Splits one answer into spans, in order; joined, the text of their runs is the answer."""

    def push(self, text: str) -> list[Span]:
        """Return the spans that `text` settles."""
        ...

    def finish(self) -> list[Span]:
        """Return what was held back; to be called once, at the answer's end."""
        ...


def span(
    channel: Channel | None,
    text: str,
    shown: str = "",
    parts: Iterable[CallPiece | InvalidCall] = (),
) -> Span:
    """Return a span; of `text` a client sees `shown`."""
    return Span(Run(channel, text, shown), tuple(parts))


class AnswerChannels:
    """Splits the marked text of one answer into runs.

    reasoning  whether it begins inside the reasoning
    calls      whether calls are looked for; otherwise their markup is content
    separate   False: reasoning is content, with its end spelled out

    The runs do not depend on how the text is cut into pieces, except for where neighbouring runs
    of one channel are split. Joined, their `text` is the answer.
    """

    def __init__(self, *, reasoning: bool, calls: bool, separate: bool = True) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._separate = separate
        self._in_block = False
        self._held = ""
        self._skipping = False

    def push(self, text: str) -> list[Run]:
        """Return the runs that `text` settles.

        A run of "call" is one mark, or text without marks. The first of them is the opening of
        the block up to its first mark; no other channel comes after it.
        """
        if not self._in_block and not self._skipping and _MARK.search(text) is None:
            return self._settled(text)
        return [run for piece in _MARK.split(text) if piece for run in self._piece(piece)]

    def finish(self) -> list[Run]:
        """Return what was held back; to be called once, at the answer's end."""
        return self._release()

    def _piece(self, piece: str) -> Iterator[Run]:
        if self._in_block:
            # Thinking has no place in a block: these marks are dropped there.
            dropped = piece in SPELLING and piece != DSML
            yield Run(None if dropped else "call", piece, "")
        elif piece == DSML:
            yield from self._dsml()
        elif piece in SPELLING:
            yield from self._think(piece)
        else:
            yield from self._text(piece)

    def _text(self, piece: str) -> Iterator[Run]:
        if self._skipping:
            skipped, end, piece = piece.partition(">")
            self._skipping = not end
            yield Run(None, skipped + end, "")
        yield from self._settled(piece)

    def _settled(self, text: str) -> list[Run]:
        """Return what text without marks settles."""
        if self._calls:
            text = self._held + text
            found = _OPENING.search(text)
            cut = found.start() if found else len(text)
            text, self._held = text[:cut], text[cut:]
        return [Run(self._channel, text, text)] if text else []

    def _think(self, mark: str) -> Iterator[Run]:
        """Change the channel; a mark that changes nothing is dropped."""
        yield from self._release()
        self._skipping = False
        changes = self._reasoning != (mark == THINK)
        self._reasoning = mark == THINK
        if changes and not self._separate:
            yield Run("content", mark, SPELLING[mark])
        else:
            yield Run(None, mark, "")

    def _dsml(self) -> Iterator[Run]:
        if not self._calls:
            yield Run(self._channel, DSML, SPELLING[DSML])
        elif self._held.endswith("</"):
            # A closing tag of nothing: dropped up to its end.
            self._held = self._held[:-2]
            yield from self._release()
            self._skipping = True
            yield Run(None, f"</{DSML}", "")
        elif self._held.endswith("<"):
            opening, self._held = self._held + DSML, ""
            self._in_block, self._reasoning = True, False
            yield Run("call", opening, "")
        else:
            yield from self._release()
            yield Run(None, DSML, "")

    def _release(self) -> list[Run]:
        held, self._held = self._held, ""
        return [Run(self._channel, held, held)] if held else []

    @property
    def _channel(self) -> Channel:
        return "reasoning" if self._reasoning and self._separate else "content"
