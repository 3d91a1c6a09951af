"""One choice of a chat as its client sees it: deltas of a stream, or a whole message."""

import uuid
from collections.abc import Iterable
from typing import Any

from runtime.chat.answer_parser import AnswerParser, Part, Text
from runtime.chat.dsml import InvalidCall, ToolCall
from runtime.server.openai import finish_fields
from runtime.tokenizer.choice import Finish


class ChoiceReply:
    """Collects the parts of one answer.

    reasoning, content  so far
    tool_calls          whole calls, as OpenAI shows them
    invalid_calls       calls that cannot be handed to a tool, and why; told in the extension field
                        `invalid_tool_calls`, since an answer that just lacks them would be a lie
    """

    def __init__(self, parser: AnswerParser, *, hold_reasoning: bool = False) -> None:
        """`hold_reasoning` keeps reasoning until it has ended."""
        self.reasoning = ""
        self.content = ""
        self.tool_calls: list[dict[str, Any]] = []
        self.invalid_calls: list[dict[str, Any]] = []
        self._parser = parser
        self._hold_reasoning = hold_reasoning
        self._told_reasoning = 0

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

        An answer that ended by itself with calls to make says so; one that was cut off says that.
        """
        fields = finish_fields(finish)
        if self.tool_calls and fields["finish_reason"] == "stop":
            fields["finish_reason"] = "tool_calls"
        return fields

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
            case ToolCall(name, arguments):
                call = {
                    "index": len(self.tool_calls),
                    "id": f"call_{uuid.uuid4().hex}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                self.tool_calls.append(call)
                return _merged([*self._held_reasoning(), {"tool_calls": [call]}])
            case InvalidCall(name, error):
                self.invalid_calls.append({"name": name, "error": error})
                return None

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
