"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, on top of chats."""

import re
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest
from runtime.server.body import read_body
from runtime.server.chat import ChatPlan, Chats
from runtime.server.chat_reply import ChoiceReply
from runtime.server.fields import called_here
from runtime.server.messages_reply import (
    BlockEvents,
    Event,
    assembled,
    message_usage,
    stop_fields,
)
from runtime.server.messages_schema import CountBody, MessagesBody
from runtime.server.replies import EventStream, event, events, json_reply, until_disconnect
from runtime.server.runs import Tally, gather, merge
from runtime.server.service import Service
from runtime.tokenizer.choice import Finish

PING = event({"type": "ping"}, "ping")
# Some clients and gateways tell by it whose id it is.
CALL_PREFIX = "toolu_"

_Body = TypeVar("_Body", bound=CountBody)
_UNKNOWN_TYPE = re.compile(r"(.+)\.type: Invalid (?:enum )?value ('.*')", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that is going to be answered, and the head of its answer."""

    body: MessagesBody
    plan: ChatPlan
    id: str
    model: str

    def blocks(self) -> BlockEvents:
        """Return what turns the answer into events."""
        return BlockEvents(self.id, omit_thinking=self.body.omits_thinking)

    def told(self, content: list[Any], tally: Tally, **stop: Any) -> dict[str, Any]:
        """Return the message object."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **stop,
            "usage": message_usage(tally),
        }

    def stop(self, finish: Finish | None, reply: ChoiceReply, tally: Tally) -> dict[str, Any]:
        """Return how the answer ended.

        Calls that cannot be handed to a tool are told in an extension field: without them the
        answer would be another one.
        """
        within = tally.completion_tokens < self.body.max_tokens
        fields = stop_fields(finish, calls=reply.calls_tools, within_limit=within)
        if reply.invalid_calls:
            fields["invalid_tool_calls"] = reply.invalid_calls
        return fields


class MessagesRoutes:
    """The handlers of `/v1/messages` and `/v1/messages/count_tokens`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chats = Chats(service)

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        message = await self._message(await _read(request, MessagesBody))
        if message.body.stream:
            told = events(self._stream(message), named=True)
            return EventStream(told, keep_alive=PING, done=b"")
        return json_reply(await until_disconnect(request, self._gather(message)))

    async def count_tokens(self, request: Request) -> Response:
        """Return how many tokens the prompt of a conversation has."""
        body = await _read(request, CountBody)
        self._service.check_model(body.model)
        return json_reply({"input_tokens": len(await self._chats.encode(body.prompt()))})

    async def _message(self, body: MessagesBody) -> _Message:
        with called_here({"stop": "stop_sequences", "response_format": body.format_name}):
            plan = await self._chats.plan(body.chat())
        spec = plan.call.sampling
        if body.max_tokens > 0:
            # More than the context leaves may be asked for: the answer then ends where it is full.
            spec = replace(spec, max_new_tokens=None, default_new_tokens=body.max_tokens)
        if spec.grammar is not None and spec.grammar.field == "response_format":
            # It is compiled, and may be refused, when the request has long been taken.
            grammar = msgspec.structs.replace(spec.grammar, field=body.format_name)
            spec = replace(spec, grammar=grammar)
        plan = replace(plan, call=replace(plan.call, sampling=spec))
        name = body.rid or f"msg_{uuid.uuid4().hex}"
        return _Message(body, plan, name, self._service.model_name)

    async def _gather(self, message: _Message) -> dict[str, Any]:
        plan, blocks = message.plan, message.blocks()
        [[answer]] = await gather(self._service.manager, [plan.call])
        reply, counter = plan.reply(call_prefix=CALL_PREFIX), plan.counter()
        deltas = reply.feed(answer.text, ended=True)
        answer.count_reasoning(counter, answer.token_ids)
        self._chats.prepare_next(plan, reply, answer.finish)
        content = assembled([*blocks.add(deltas), *blocks.end()])
        return message.told(content, answer, **message.stop(answer.finish, reply, answer))

    async def _stream(self, message: _Message) -> AsyncGenerator[Event, None]:
        plan, blocks, tally = message.plan, message.blocks(), Tally()
        reply, counter = plan.reply(call_prefix=CALL_PREFIX), plan.counter()
        begun = False
        merged = merge(self._service.manager, [plan.call])
        try:
            async for _, delta in merged:
                tally.count(delta)
                tally.count_reasoning(counter, delta.token_ids)
                if not begun:
                    begun = True
                    head = message.told([], tally, stop_reason=None, stop_sequence=None)
                    yield {"type": "message_start", "message": head}
                for told in blocks.add(reply.feed(delta.text, ended=delta.finish is not None)):
                    yield told
                if delta.finish is not None:
                    self._chats.prepare_next(plan, reply, delta.finish)
                    for told in blocks.end():
                        yield told
                    stop, usage = message.stop(delta.finish, reply, tally), message_usage(tally)
                    yield {"type": "message_delta", "delta": stop, "usage": usage}
                    yield {"type": "message_stop"}
        finally:
            await merged.aclose()


async def _read(request: Request, shape: type[_Body]) -> _Body:
    """Return the body; a block, tool or setting of a type that is not read is named."""
    try:
        return await read_body(request, shape)
    except BadRequest as fault:
        found = _UNKNOWN_TYPE.fullmatch(fault.message)
        if found is None:
            raise
        text = f"{found[1]}: the type {found[2]} is not supported"
        raise BadRequest(text, param=fault.param, code="not_supported") from fault
