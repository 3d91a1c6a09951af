"""Items of `/v1/responses` as messages of a chat.

Source: the Responses conversion of deepseek-recipe, whose prompts these become: a developer's
message is a user's, a reasoning item begins a new answer unless one has just begun, and the output
of a call stands right behind the items of its answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from runtime.errors import BadRequest
from runtime.server.chat_schema import (
    MAX_MESSAGES,
    ChatMessage,
    ContentPart,
    CustomCall,
    FunctionCall,
    MessageToolCall,
)
from runtime.server.responses_items import ROLES, Item, texts, unsupported
from runtime.server.responses_tools import full_name

# The instructions are one message more.
MAX_ITEMS = MAX_MESSAGES - 1


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[ChatMessage]:
    """Return a conversation as a chat.

    Raises BadRequest where there is nothing, an item that is not supported, or a call without its
    output.
    """
    if not 1 <= len(items) <= MAX_ITEMS:
        text = f"input must have 1 to {MAX_ITEMS} items, those of earlier responses included"
        raise BadRequest(text, param="input")
    chat = [ChatMessage(role="system", content=instructions)] if instructions else []
    chat += _turns(items)
    return chat


@dataclass(slots=True)
class _Answer:
    """An answer of the assistant, while its items are read."""

    reasoning: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    calls: list[MessageToolCall] = field(default_factory=list[MessageToolCall])

    def begun(self) -> bool:
        return bool(self.reasoning or self.texts or self.calls)

    def message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content=_parts(self.texts),
            reasoning_content="\n".join(filter(None, self.reasoning)) or None,
            tool_calls=self.calls or None,
        )


def _turns(items: Sequence[Item]) -> Iterator[ChatMessage]:
    answer, waiting = _Answer(), set[str]()
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if not _take(answer, item, where):
            if answer.begun():
                yield answer.message()
                waiting |= {call.id for call in answer.calls}
                answer = _Answer()
            if item.kind in ("function_call_output", "custom_tool_call_output"):
                yield _output(item, waiting, where)
                continue
            _check_outputs(waiting)
            if item.kind == "reasoning" or item.role == "assistant":
                _take(answer, item, where)
            else:
                yield _message(item, where)
    if answer.begun():
        yield answer.message()
    _check_outputs(waiting | {call.id for call in answer.calls})


def _take(answer: _Answer, item: Item, where: str) -> bool:
    """Add an item to the answer that it is a part of; say whether it is one."""
    match item.kind:
        case "reasoning":
            if answer.texts or answer.calls:
                return False
            answer.reasoning.append(item.reasoning(where))
        case "function_call" | "custom_tool_call":
            # What was cut off was never called.
            if item.status != "incomplete":
                answer.calls.append(_call(item, where))
        case "message" if item.role == "assistant":
            answer.texts += texts(item.content, f"{where}.content")
        case _:
            return False
    return True


def _call(item: Item, where: str) -> MessageToolCall:
    if not item.call_id or not item.name:
        raise BadRequest(f"{where}: a {item.kind} has a call_id and a name", param="input")
    if item.kind == "custom_tool_call":
        custom = CustomCall(item.name, item.input or "")
        return MessageToolCall(item.call_id, type="custom", custom=custom)
    name = full_name(item.namespace, item.name)
    return MessageToolCall(item.call_id, FunctionCall(name, item.arguments or "{}"))


def _output(item: Item, waiting: set[str], where: str) -> ChatMessage:
    call_id = item.call_id or ""
    if call_id not in waiting:
        text = f"{where}: there is no call with call_id {call_id[:80]!r} before this output"
        raise BadRequest(text, param="input")
    waiting.discard(call_id)
    said = texts(item.output, f"{where}.output")
    return ChatMessage(role="tool", content=_parts(said), tool_call_id=call_id)


def _check_outputs(waiting: set[str]) -> None:
    """Raise BadRequest where a call has no output before the conversation goes on."""
    if waiting:
        text = f"input: the call {min(waiting)[:80]!r} has no function_call_output"
        raise BadRequest(f"{text} where the next turn begins", param="input")


def _message(item: Item, where: str) -> ChatMessage:
    if item.kind != "message":
        raise unsupported(where, item.kind)
    if item.role not in ROLES:
        text = f"{where}: role must be one of {', '.join(ROLES)}"
        raise BadRequest(f"{text}, got {(item.role or '')[:80]!r}", param="input")
    role = "user" if item.role == "developer" else item.role
    return ChatMessage(role=role, content=_parts(texts(item.content, f"{where}.content")))


def _parts(said: list[str]) -> list[ContentPart]:
    return [ContentPart("text", text) for text in said]
