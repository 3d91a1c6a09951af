"""One choice of a chat as its client sees it: deltas of a stream, or a whole message.

A stream has a call's name first, then its arguments piece by piece; a whole message has only calls
that are whole. Together the pieces of a whole call are the arguments that the message has. A call
that was begun in a stream and did not become whole keeps incomplete arguments, which are no JSON;
`invalid_tool_calls` has its id and says why, and `finish_reason` is not `tool_calls`.
"""

import uuid
from collections.abc import Iterable
from typing import Any

from runtime.chat.answer_format import Parser
from runtime.chat.answer_parser import Part, Text
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.server.openai import finish_fields
from runtime.tokenizer.choice import Finish


class ChoiceReply:
    """Collects the parts of one answer.

    reasoning, content  so far
    tool_calls          whole calls, as OpenAI shows them, with their place in a stream as `index`
    invalid_calls       calls that cannot be handed to a tool, and why; told in the extension field
                        `invalid_tool_calls`, since an answer that just lacks them would be a lie
    """

    def __init__(
        self,
        parser: Parser,
        *,
        hold_reasoning: bool = False,
        hold_calls: bool = False,
        call_prefix: str = "call_",
    ) -> None:
        """Begin a reply.

        hold_reasoning  keep reasoning until it has ended
        hold_calls      keep each call until it is whole
        call_prefix     what ids of calls begin with
        """
        self.reasoning = ""
        self.content = ""
        self.tool_calls: list[dict[str, Any]] = []
        self.invalid_calls: list[dict[str, Any]] = []
        self._parser = parser
        self._hold_reasoning = hold_reasoning
        self._hold_calls = hold_calls
        self._call_prefix = call_prefix
        self._told_reasoning = 0
        self._call: dict[str, Any] = {}
        self._arguments: list[str] = []
        self._begun_calls = 0
        self._broken_calls = 0

    def feed(self, text: str, *, ended: bool) -> list[dict[str, Any]]:
        """Take more of the answer; return the `delta` objects for its news, in order."""
        parts = self._parser.push(text)
        if ended:
            parts += self._parser.finish()
        deltas = list(filter(None, map(self._take, parts)))
        if ended:
            deltas += self._held_reasoning()
            if self.invalid_calls:
                deltas.append({"invalid_tool_calls": self.invalid_calls})
        return deltas

    def message(self) -> dict[str, Any]:
        """Return the whole message; `reasoning_content` and calls only where there are any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            # OpenAI's own answers say null where nothing but calls was said.
            message["content"] = self.content or None
            message["tool_calls"] = [_without_index(call) for call in self.tool_calls]
        if self.invalid_calls:
            message["invalid_tool_calls"] = self.invalid_calls
        return message

    def finish_fields(self, finish: Finish | None) -> dict[str, Any]:
        """Return `finish_reason` and `matched_stop`.

        An answer that ended by itself with calls to make says so; one that was cut off says that,
        and one with a call that did not become whole just ends.
        """
        fields = finish_fields(finish)
        if self.calls_tools and fields["finish_reason"] == "stop":
            fields["finish_reason"] = "tool_calls"
        return fields

    @property
    def calls_tools(self) -> bool:
        """Whether there are calls to make, and each one that was begun is whole."""
        return bool(self.tool_calls) and not self._broken_calls

    def _take(self, part: Part) -> dict[str, Any] | None:
        match part:
            case Text("reasoning", text):
                self.reasoning += text
                if self._hold_reasoning:
                    return None
                return {"reasoning_content": text}
            case Text(_, text):
                self.content += text
                return _merged([*self._held_reasoning(), {"content": text}])
            case CallPiece():
                return self._take_piece(part)
            case InvalidCall(name, error, begun):
                known = {"id": self._call["id"]} if begun and not self._hold_calls else {}
                self._broken_calls += begun
                self.invalid_calls.append({**known, "name": name, "error": error})
                return None

    def _take_piece(self, piece: CallPiece) -> dict[str, Any] | None:
        """Take more of a call; return the news of it, None where they are held."""
        fields: dict[str, Any] = {}
        if piece.name is not None:
            fields = {"id": f"{self._call_prefix}{uuid.uuid4().hex}", "type": "function"}
            self._call = {"index": self._begun_calls, **fields}
            self._call["function"] = {"name": piece.name, "arguments": ""}
            self._begun_calls += 1
            self._arguments = []
        self._arguments.append(piece.arguments)
        if piece.ended:
            self._call["function"]["arguments"] = "".join(self._arguments)
            self.tool_calls.append(self._call)
        if self._hold_calls and not piece.ended:
            return None
        named = {} if piece.name is None else {"name": piece.name}
        function = {**named, "arguments": piece.arguments}
        news = {"index": self._call["index"], **fields, "function": function}
        if self._hold_calls:
            news = self._call
        return _merged([*self._held_reasoning(), {"tool_calls": [news]}])

    def _held_reasoning(self) -> list[dict[str, Any]]:
        """Return what was held of the reasoning, once."""
        if not self._hold_reasoning:
            return []
        held, self._told_reasoning = self.reasoning[self._told_reasoning :], len(self.reasoning)
        return [{"reasoning_content": held}] if held else []


def _merged(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for delta in deltas for name, value in delta.items()}


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "index"}
