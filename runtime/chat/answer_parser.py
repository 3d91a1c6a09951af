"""The parts of a V4 answer as it comes: reasoning, content and tool calls.

It reads marked text (`runtime.chat.marks`) in pieces of any size and says the same whatever the
pieces are. Nothing is trimmed but what the format itself puts before a block of calls: the next
turn's prompt is rendered from these parts, and only then spells the same tokens again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.channels import AnswerChannels, Run
from runtime.chat.dsml import CallPart, ToolCallBlock
from runtime.chat.marks import DSML


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
    channels   what tells the channels of the answer apart; the parser's own
    """

    def __init__(
        self,
        *,
        reasoning: bool,
        tools: Mapping[str, Any] | None,
        parallel: bool = True,
        separate: bool = True,
    ) -> None:
        self._tools = tools
        self._block: ToolCallBlock | None = None
        self._limit = CallLimit(parallel=parallel)
        self.channels = AnswerChannels(
            reasoning=reasoning, calls=tools is not None, separate=separate
        )

    def push(self, text: str) -> list[Part]:
        """Return what `text` settles; neighbouring pieces of one channel or call come as one."""
        return self._parts(self.channels.push(text))

    def finish(self) -> list[Part]:
        """Return what was held back; to be called once, at the answer's end."""
        if self._block is not None:
            return list(self._limit.counted(self._block.finish()))
        return self._parts(self.channels.finish())

    def _parts(self, runs: Iterable[Run]) -> list[Part]:
        parts: list[Part] = []
        for run in runs:
            if run.channel == "call":
                parts += self._limit.counted(self._call(run.text))
            elif run.channel is not None:
                parts.append(Text(run.channel, run.shown))
        return joined(parts)

    def _call(self, text: str) -> Iterator[CallPart]:
        if self._block is None:
            assert self._tools is not None, "calls are looked for where there are tools"
            self._block = ToolCallBlock(self._tools)
        elif text == DSML:
            yield from self._block.mark()
        else:
            yield from self._block.text(text)


class CallLimit:
    """Passes calls on.

    parallel  False: the first whole call is the last one
    """

    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._calls = 0
        self._refused = False

    def counted(self, calls: Iterable[CallPart]) -> Iterator[Part]:
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


def joined(parts: Iterable[Part]) -> list[Part]:
    """Return parts with neighbouring pieces of one channel or call as one."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Text) and isinstance(last, Text) and part.channel == last.channel:
            found[-1] = Text(part.channel, last.text + part.text)
        elif isinstance(part, CallPiece) and part.name is None and isinstance(last, CallPiece):
            found[-1] = CallPiece(last.name, last.arguments + part.arguments, part.ended)
        else:
            found.append(part)
    return found
