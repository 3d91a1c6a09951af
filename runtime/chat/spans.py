"""What the parsers of answers share: pieces of an answer with what they mean."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.channels import Channel, Run


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
