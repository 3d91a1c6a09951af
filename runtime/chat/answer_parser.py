"""The parts of a V4 answer as it comes: reasoning, content and tool calls.

It reads marked text (`runtime.chat.marks`) in pieces of any size and says the same whatever the
pieces are. Nothing is trimmed but what the format itself puts before a block of calls: the next
turn's prompt is rendered from these parts, and only then spells the same tokens again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.dsml import CallPart, ToolCallBlock
from runtime.chat.marks import DSML, SPELLING, THINK, THINK_END

_MARK = re.compile(f"([{THINK}{THINK_END}{DSML}])")
# What may turn out to be the beginning of a block: `\n\n<` before its mark.
_OPENING = re.compile(r"\n{0,2}(?:</?)?\Z")


@dataclass(frozen=True, slots=True)
class Text:
    """More reasoning, or more content."""

    channel: Literal["reasoning", "content"]
    text: str


Part = Text | CallPart


class AnswerParser:
    """Parses one answer.

    reasoning  whether it begins inside the reasoning
    tools      schema of the parameters by tool name, empty where no call may be made; None: calls
               are not looked for, and one that the model writes nevertheless is content
    parallel   False: the first whole call is the last one
    separate   False: reasoning is content, with its end spelled out
    """

    def __init__(
        self,
        *,
        reasoning: bool,
        tools: Mapping[str, Any] | None,
        parallel: bool = True,
        separate: bool = True,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._parallel = parallel
        self._separate = separate
        self._block: ToolCallBlock | None = None
        self._held = ""
        self._skipping = False
        self._calls = 0
        self._refused = False

    def push(self, text: str) -> list[Part]:
        """Return what `text` settles; neighbouring pieces of one channel or call come as one."""
        return _joined(part for run in _MARK.split(text) if run for part in self._run(run))

    def finish(self) -> list[Part]:
        """Return what was held back; to be called once, at the answer's end."""
        if self._block is not None:
            return list(self._counted(self._block.finish()))
        return _joined(self._release())

    def _run(self, run: str) -> Iterator[Part]:
        if run == DSML:
            yield from self._dsml()
        elif self._block is not None:
            # Thinking has no place in a block: these marks are dropped there.
            if run not in SPELLING:
                yield from self._counted(self._block.text(run))
        elif run in SPELLING:
            yield from self._think(opens=run == THINK)
        else:
            yield from self._text(run)

    def _text(self, run: str) -> Iterator[Part]:
        if self._skipping:
            _, end, run = run.partition(">")
            self._skipping = not end
        if self._tools is None:
            yield from self._say(run)
            return
        whole = self._held + run
        found = _OPENING.search(whole)
        cut = found.start() if found else len(whole)
        self._held = whole[cut:]
        yield from self._say(whole[:cut])

    def _think(self, *, opens: bool) -> Iterator[Part]:
        """Change the channel; a mark that changes nothing is dropped."""
        if opens == self._reasoning:
            return
        yield from self._release()
        self._reasoning = opens
        if not self._separate:
            yield Text("content", SPELLING[THINK if opens else THINK_END])

    def _dsml(self) -> Iterator[Part]:
        if self._tools is None:
            yield from self._say(SPELLING[DSML])
        elif self._block is not None:
            yield from self._counted(self._block.mark())
        elif self._held.endswith("</"):
            # A closing tag of nothing: dropped up to its end.
            self._held = self._held[:-2]
            yield from self._release()
            self._skipping = True
        elif self._held.endswith("<"):
            self._held, self._reasoning = "", False
            self._block = ToolCallBlock(self._tools)

    def _counted(self, calls: Iterable[CallPart]) -> Iterator[Part]:
        """Leave out the calls after a first whole one, where there must be no more than that."""
        for part in calls:
            if isinstance(part, InvalidCall):
                if not (part.begun and self._refused):
                    yield part
                continue
            if part.name is not None:
                self._refused = self._calls > 0 and not self._parallel
                if self._refused:
                    yield InvalidCall(part.name, "parallel_tool_calls is false")
            self._calls += part.ended
            if not self._refused:
                yield part

    def _release(self) -> Iterator[Part]:
        held, self._held = self._held, ""
        yield from self._say(held)

    def _say(self, text: str) -> Iterator[Part]:
        if text:
            yield Text("reasoning" if self._reasoning and self._separate else "content", text)


def _joined(parts: Iterable[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text) and part.channel == last.channel:
            joined[-1] = Text(part.channel, last.text + part.text)
        elif isinstance(part, CallPiece) and part.name is None and isinstance(last, CallPiece):
            joined[-1] = CallPiece(last.name, last.arguments + part.arguments, part.ended)
        else:
            joined.append(part)
    return joined
