"""`/v1/chat/completions`, plain chat."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest
from runtime.messages import Logprobs
from runtime.server.body import read_body
from runtime.server.native_plan import NO_PROMPT_LOGPROBS
from runtime.server.native_schema import check_priority
from runtime.server.openai import (
    Envelope,
    Usage,
    chat_logprobs,
    finish_fields,
    usage_fields,
    usage_report,
)
from runtime.server.openai_schema import ChatBody
from runtime.server.replies import EventStream, event, json_reply, until_disconnect
from runtime.server.runs import Answer, gather, labels, merge
from runtime.server.service import Service
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Delta


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request, ready to run."""

    body: ChatBody
    envelope: Envelope
    call: GenerateCall


class ChatRoutes:
    """The handler of `/v1/chat/completions`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody)
        plan = await self._plan(body)
        if body.stream:
            return EventStream(self._stream(plan))
        return json_reply(await until_disconnect(request, self._gather(plan)))

    async def encode(self, body: ChatBody) -> list[int]:
        """Return the prompt of a chat. Raises BadRequest."""
        chat = self._service.chat
        if chat is None:
            raise BadRequest("this checkpoint has no tokenizer.json: use /generate with input_ids")
        turns = body.turns()
        opens = True if body.add_generation_prompt is None else body.add_generation_prompt
        if body.continues and turns[-1].role != "assistant":
            raise BadRequest("only an assistant's message can be continued", param="messages")
        work = partial(
            chat.encode,
            turns,
            continue_final=body.continues,
            open_turn=opens,
            variables=body.variables(),
        )
        return await self._service.manager.in_thread(work)

    async def _plan(self, body: ChatBody) -> _Plan:
        service = self._service
        service.check_model(body.model)
        spec = body.spec(vocab_size=service.vocab_size)
        call = GenerateCall(
            sampling=spec,
            input_ids=await self.encode(body),
            logprobs=Logprobs(NO_PROMPT_LOGPROBS, body.top_logprobs or 0)
            if body.logprobs
            else None,
            namespace=service.namespaces.of(body.cache_salt, body.extra_key),
            priority=check_priority(body.priority),
            stream=bool(body.stream),
            rid=labels(body.rid, 1)[0],
        )
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return _Plan(body, Envelope.make("chatcmpl", kind, body, service.model_name), call)

    async def _gather(self, plan: _Plan) -> dict[str, Any]:
        [answers] = await gather(self._service.manager, [plan.call])
        choices = [self._choice(plan, index, answer) for index, answer in enumerate(answers)]
        return plan.envelope.wrap(choices, usage=usage_report([answers]))

    def _choice(self, plan: _Plan, index: int, answer: Answer) -> dict[str, Any]:
        asked = plan.call.logprobs is not None
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": chat_logprobs(answer.logprobs, self._service.speller) if asked else None,
            **finish_fields(answer.finish),
        }

    async def _stream(self, plan: _Plan) -> AsyncGenerator[bytes, None]:
        body, usage = plan.body, Usage([plan.call])
        wrap = plan.envelope.wrap
        begun: set[int] = set()
        merged = merge(self._service.manager, [plan.call])
        try:
            async for _, delta in merged:
                usage.tallies[0][delta.index].count(delta)
                more = usage_fields(body, usage)
                if delta.index not in begun:
                    begun.add(delta.index)
                    role = {"role": "assistant", "content": ""}
                    yield event(wrap([_chunk(delta.index, role)], **more))
                if delta.text or delta.logprobs is not None:
                    yield event(wrap([self._content(delta)], **more))
                if delta.finish is not None:
                    last = _chunk(delta.index, {}) | finish_fields(delta.finish)
                    yield event(wrap([last], **more))
        finally:
            await merged.aclose()
        if body.include_usage:
            yield event(wrap([], usage=usage.report()))

    def _content(self, delta: Delta) -> dict[str, Any]:
        chunk = _chunk(delta.index, {"content": delta.text})
        if delta.logprobs is not None:
            chunk["logprobs"] = chat_logprobs(delta.logprobs, self._service.speller)
        return chunk


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
