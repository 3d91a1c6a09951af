"""The tool-call block of a V4 answer: from marked text to pieces of calls, as they come.

A call begins when the names of its tool and of its first parameter are known, or with its end. The
pieces of its arguments are final (`runtime.chat.call_writer`), and the arguments of a whole call
are one valid JSON object, whatever the model wrote. A call may still turn out invalid after it has
begun: the answer ends inside it, or a later parameter has no name. It is then reported as invalid,
and its arguments stay incomplete.

Beyond the published form this reads what models were seen to write: the wrapper missing or
misspelt, a self-closing invoke, a JSON object as the body, a parameter without `string=`, a
closing tag left out before the next tag, arguments inside one more object.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runtime.chat.call_writer import CallPiece, CallWriter, InvalidCall
from runtime.chat.dsml_heads import invoked_name, is_head, parameter_of
from runtime.chat.marks import DSML, SPELLING

CallPart = CallPiece | InvalidCall

_BEFORE_MARK = re.compile(r"(?:</?)?\Z")
_CUT_OFF = "the answer ended inside this call"


@dataclass(slots=True)
class _Tag:
    """The tag that is being read.

    pieces    the text of its head so far
    complete  whether that is the whole head, up to its ">" or to the next tag
    contents  what the text behind the head is
    """

    closing: bool
    pieces: list[str] = field(default_factory=list[str])
    complete: bool = False
    contents: Literal["value", "body", "nothing"] = "nothing"

    @property
    def head(self) -> str:
        return "".join(self.pieces)


class ToolCallBlock:
    """Reads what follows the first `<` and mark of a block.

    tools  schema of the parameters by tool name; a call of any other tool is invalid
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self._tools = tools
        self._tag = _Tag(closing=False)
        # "<" or "</", which begins a tag if a mark follows.
        self._held = ""
        self._call: CallWriter | None = None
        self._body: list[str] = []
        self._any_calls = False

    def text(self, piece: str) -> Iterator[CallPart]:
        """Take text without marks; yield what it settles."""
        whole = self._held + piece
        found = _BEFORE_MARK.search(whole)
        cut = found.start() if found else len(whole)
        self._held = whole[cut:]
        if cut:
            yield from self._read(whole[:cut])

    def mark(self) -> Iterator[CallPart]:
        """Take a DSML token, which begins the next tag or is text; yield what it settles."""
        held, self._held = self._held, ""
        if not held:
            yield from self._read(SPELLING[DSML])
            return
        yield from self._end_tag()
        self._tag = _Tag(closing=held == "</")

    def finish(self) -> Iterator[InvalidCall]:
        """Yield the call that the answer's end cut off, if there is one."""
        tag = self._tag
        begins = not tag.complete and not tag.closing
        named = invoked_name(tag.head) if begins else None
        if self._call is not None:
            yield self._call.invalid(_CUT_OFF)
        elif named is not None:
            yield InvalidCall(named, _CUT_OFF)
        elif not self._any_calls or (begins and "invoke".startswith(tag.head.strip()[:6])):
            yield InvalidCall(None, "the answer ended before this call named a tool")

    def _read(self, text: str) -> Iterator[CallPart]:
        tag = self._tag
        if tag.complete:
            yield from self._contents(text)
            return
        tag.pieces.append(text)
        if ">" not in text:
            return
        whole = tag.head
        end = whole.find(">", len(whole) - len(text))
        while end >= 0:
            head = whole[: end + 1]
            if tag.closing or is_head(head, self._declared):
                tag.pieces = [head]
                yield from self._settle()
                if rest := whole[end + 1 :]:
                    yield from self._contents(rest)
                return
            end = whole.find(">", end + 1)

    @property
    def _declared(self) -> Mapping[str, Any]:
        """The parameters of the open call by their names."""
        return {} if self._call is None else self._call.parameters.named

    def _contents(self, text: str) -> Iterator[CallPart]:
        """Take text behind a tag's head."""
        if self._tag.contents == "value" and self._call is not None:
            yield from self._call.add(text)
        elif self._tag.contents == "body":
            self._body.append(text)

    def _end_tag(self) -> Iterator[CallPart]:
        """End the current tag, since the next one begins; its head may have been left open."""
        if not self._tag.complete:
            yield from self._settle()
        if self._tag.contents == "value" and self._call is not None:
            yield from self._call.close_value()

    def _settle(self) -> Iterator[CallPart]:
        """Do what the current tag says, now that its head is known."""
        tag = self._tag
        tag.complete = True
        kind = tag.head.lstrip()
        if tag.closing:
            # The block's own end closes a call as well.
            if not kind.startswith("parameter"):
                yield from self._close()
        elif kind.startswith("parameter") and self._call is not None:
            yield from self._open_parameter(self._call)
        elif kind.startswith("invoke"):
            yield from self._close()
            yield from self._invoke()

    def _invoke(self) -> Iterator[CallPart]:
        tag, self._any_calls, self._body = self._tag, True, []
        name = invoked_name(tag.head)
        if name is None:
            yield InvalidCall(None, "the call names no tool")
        elif not self._tools:
            yield InvalidCall(name, "the request lets no tool be called")
        elif name not in self._tools:
            yield InvalidCall(name, "there is no such tool")
        else:
            self._call = CallWriter(name, self._tools[name])
            if tag.head.endswith("/>"):
                # What stands behind it is none of its body.
                yield from self._close()
            else:
                tag.contents = "body"

    def _open_parameter(self, call: CallWriter) -> Iterator[CallPart]:
        found = parameter_of(self._tag.head)
        if found is None:
            self._call = None
            yield call.invalid("a parameter has no name")
            return
        self._tag.contents = "value"
        yield from call.open(found.name, is_text=found.is_text)

    def _close(self) -> Iterator[CallPart]:
        call, self._call = self._call, None
        if call is not None:
            yield from call.close("".join(self._body))
