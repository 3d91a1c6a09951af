"""Messages of `/v1/messages` as messages of a chat.

Source: the Messages conversion of deepseek-recipe, whose prompts these become. Where the last
message is the assistant's, the answer goes on from it, as Anthropic's API says.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from runtime.errors import BadRequest
from runtime.server.chat_schema import ChatMessage, ContentPart, FunctionCall, MessageToolCall
from runtime.server.messages_blocks import (
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from runtime.server.messages_thinking import recall

# Claude Code begins its system prompt with a line for Anthropic's accounting. It says nothing to
# a model, and a number in it changes with every request: nothing behind it would be reused.
_ACCOUNTING = "x-anthropic-billing-header:"


def chat_messages(
    system: str | list[TextBlock] | None, messages: Sequence[Message]
) -> list[ChatMessage]:
    """Return a conversation as a chat.

    Raises BadRequest where there is nothing, or a block that its role cannot have.
    """
    if not messages:
        raise BadRequest("messages: there must be at least one", param="messages")
    chat = [*_system(system)]
    for spoken, run in groupby(enumerate(messages), lambda item: item[1].role == "assistant"):
        turn = list(run)
        chat += [_answered(turn)] if spoken else _asked(turn)
    if not chat:
        raise BadRequest("messages: none has any content", param="messages")
    _check_results(chat)
    if messages[-1].role == "assistant":
        chat[-1] = msgspec.structs.replace(chat[-1], prefix=True)
    return chat


def _system(system: str | list[TextBlock] | None) -> Iterator[ChatMessage]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or []]
    kept = [text.partition("\n")[2] if text.startswith(_ACCOUNTING) else text for text in texts]
    if any(kept):
        yield ChatMessage(role="system", content=_parts(filter(None, kept)))


def _asked(run: Iterable[tuple[int, Message]]) -> Iterator[ChatMessage]:
    """Yield what is said between two answers: results of tools and texts, in their order."""
    texts: list[str] = []
    for number, message in run:
        for said in _told(message, f"messages[{number}]"):
            if isinstance(said, str):
                texts.append(said)
                continue
            if texts:
                yield ChatMessage(role="user", content=_parts(texts))
                texts = []
            yield _result(said)
    if texts:
        yield ChatMessage(role="user", content=_parts(texts))


def _told(message: Message, where: str) -> Iterator[str | ToolResultBlock]:
    texts: list[str] = []
    for number, block in enumerate(message.blocks):
        match block:
            case TextBlock(text) if message.role == "user":
                yield text
            case TextBlock(text):
                texts.append(text)
            case ToolResultBlock() if message.role == "user":
                yield block
            case _:
                raise _misplaced(message, f"{where}.content[{number}]")
    if texts:
        # The system prompt cannot grow at its end without losing what is cached behind it.
        yield "<system-reminder>\n{}\n</system-reminder>".format("\n\n".join(texts))


def _check_results(chat: Sequence[ChatMessage]) -> None:
    """Raise BadRequest unless every call has its result first thing in the next message."""
    waiting = Counter[str | None]()
    for message in [*chat, ChatMessage(role="user")]:
        if message.role == "tool" and waiting[message.tool_call_id]:
            waiting[message.tool_call_id] -= 1
        elif message.role == "tool":
            raise BadRequest(
                f"messages: the tool_result of {_shown(message.tool_call_id)} belongs to no "
                "tool_use of the message before it",
                param="messages",
            )
        elif (left := next(waiting.elements(), None)) is not None:
            raise BadRequest(
                f"messages: the tool_use {_shown(left)} has no tool_result where the next "
                "message begins",
                param="messages",
            )
        else:
            waiting = Counter[str | None](call.id for call in message.tool_calls or ())


def _shown(name: str | None) -> str:
    return repr((name or "")[:80])


def _result(block: ToolResultBlock) -> ChatMessage:
    content = block.content or ""
    if not isinstance(content, str):
        content = _parts(part.text for part in content)
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _answered(run: Iterable[tuple[int, Message]]) -> ChatMessage:
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[MessageToolCall] = []
    for number, message in run:
        for k, block in enumerate(message.blocks):
            match block:
                case ThinkingBlock(thinking, signature):
                    thoughts.append(recall(thinking, signature))
                case TextBlock(text):
                    texts.append(text)
                case ToolUseBlock(call_id, name, arguments):
                    calls.append(MessageToolCall(call_id, FunctionCall(name, arguments)))
                case RedactedThinkingBlock():
                    pass
                case ToolResultBlock():
                    raise _misplaced(message, f"messages[{number}].content[{k}]")
    return ChatMessage(
        role="assistant",
        content=_parts(texts),
        reasoning_content="\n\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _parts(texts: Iterable[str]) -> list[ContentPart]:
    return [ContentPart("text", text) for text in texts]


def _misplaced(message: Message, where: str) -> BadRequest:
    return BadRequest(
        f"{where}: a message of role {message.role} has no such block", param="messages"
    )
