"""A chat's body as what a Jinja template is given: turns, tools and arguments."""

from collections.abc import Collection
from typing import Any, cast

import msgspec

from runtime.chat.answer_formats import MISTRAL, CallFormat
from runtime.chat_template import Message
from runtime.errors import BadRequest
from runtime.server.chat_schema import (
    ChatBody,
    ChatMessage,
    MessageToolCall,
    check_message_tools,
    content_texts,
)
from runtime.server.fields import refusing_depth

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Mistral's templates refuse an id of any other length.
_MISTRAL_ID_CHARS = 9
_SWITCHES = ("enable_thinking", "thinking")


def template_turns(body: ChatBody, calls: CallFormat | None) -> list[Message]:
    """Return the messages, text only.

    calls  how the model writes calls; None: it makes none, and those of earlier turns are refused
    Raises BadRequest.
    """
    body.check_count()
    names = {
        call.id: call.called.name for message in body.messages for call in message.tool_calls or ()
    }
    return [
        _turn(message, f"messages[{k}]", calls, names) for k, message in enumerate(body.messages)
    ]


def template_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """Return the tools that may be called, as templates have them; None: there are none."""
    if not body.tools or body.tool_choice == "none":
        return None
    with refusing_depth("tools"):
        tools = [msgspec.to_builtins(tool.called) for tool in body.tools]
    for function in tools:
        # A grammar holds calls to it; the model reads the rest.
        function.pop("strict", None)
    return [{"type": "function", "function": function} for function in tools]


def template_variables(body: ChatBody, reads: Collection[str]) -> dict[str, Any]:
    """Return the template variables that the client sets itself.

    reads  the names that the template reads: what switches thinking goes by several, and an
           effort switches it, too, where the template has no levels
    Raises BadRequest.
    """
    asked = body.variables(any_name=True)
    known = [name for name in _SWITCHES if name in reads]
    if not known:
        return asked
    said = asked.pop("enable_thinking", None)
    said = asked.pop("thinking", None) if said is None else said
    effort = asked.get("reasoning_effort")
    if effort is not None and "reasoning_effort" not in reads:
        del asked["reasoning_effort"]
        said = effort != "none" if said is None else said
    elif effort == "none" and said is None:
        said = False
    return asked if said is None else {**asked, known[0]: said}


def _turn(
    message: ChatMessage, where: str, calls: CallFormat | None, names: dict[str, str]
) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        raise BadRequest(
            f"{where}: role must be one of {', '.join(ROLES)}, got {message.role[:80]!r}",
            param="messages",
        )
    if message.function_call or message.audio:
        raise BadRequest(f"{where}: function_call and audio are not supported", param="messages")
    check_message_tools(message, where)
    if calls is None and (message.tool_calls or role == "tool"):
        raise BadRequest(
            f"{where}: this model's chat format has no tool calls that are known here",
            param="messages",
        )
    content: str | None = "\n".join(content_texts(message, where))
    fields: dict[str, Any] = {}
    if role == "assistant":
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            # Names differ from template to template.
            fields |= {"reasoning_content": reasoning, "thinking": reasoning}
        if message.tool_calls and calls is not None:
            fields["tool_calls"] = [_call(call, calls) for call in message.tool_calls]
            content = content or None
    elif role == "tool" and message.tool_call_id is not None and calls is not None:
        fields["tool_call_id"] = _call_id(message.tool_call_id, calls)
        if message.tool_call_id in names:
            fields["name"] = names[message.tool_call_id]
    return Message(role, content, fields)


def _call(call: MessageToolCall, calls: CallFormat) -> dict[str, Any]:
    arguments = call.called.arguments
    with refusing_depth("messages"):
        if calls.arguments == "text" and not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        elif calls.arguments == "object" and isinstance(arguments, str):
            arguments = _object(arguments)
    function = {"name": call.called.name, "arguments": arguments}
    return {"id": _call_id(call.id, calls), "type": "function", "function": function}


def _object(text: str) -> str | dict[str, Any]:
    """Return the object that a JSON text holds; a text that holds none stays."""
    try:
        found: object = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    return cast(dict[str, Any], found) if isinstance(found, dict) else text


def _call_id(call_id: str, calls: CallFormat) -> str:
    if calls.name != MISTRAL.name:
        return call_id
    return call_id[-_MISTRAL_ID_CHARS:].rjust(_MISTRAL_ID_CHARS, "0")
