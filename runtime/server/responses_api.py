"""`/v1/responses`: OpenAI's newer API, on top of chats."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import Aborted, BadRequest, NotFound, RequestError
from runtime.messages import TokenLogprobs
from runtime.server.body import LONG_BODY_BYTES, MAX_BODY_BYTES, read_body
from runtime.server.chat import ChatPlan, Chats
from runtime.server.chat_reply import ChoiceReply
from runtime.server.chat_schema import ChatBody
from runtime.server.openai import chat_logprobs
from runtime.server.replies import EventStream, events, json_reply, until_disconnect
from runtime.server.responses_items import Item
from runtime.server.responses_reply import Event, ResponseOutput
from runtime.server.responses_schema import ENCRYPTED, FORMAT, ResponsesBody, in_responses
from runtime.server.responses_state import failed, finished, response_object
from runtime.server.responses_store import ResponseStore, Stored, history
from runtime.server.responses_tools import namespaced
from runtime.server.runs import Tally, gather, merge
from runtime.server.service import Service
from runtime.tokenizer.channel_text import TokenChannel
from runtime.tokenizer.choice import Finish

# In the query of a response that is kept: parts of a stream.
_STREAMED = {"stream", "starting_after"}


@dataclass(frozen=True, slots=True)
class _Job:
    """A response that is going to be made.

    head      its fields that do not depend on the answer
    added     the items of its input
    previous  the response that it continues
    """

    body: ResponsesBody
    plan: ChatPlan
    head: dict[str, Any]
    added: list[Item]
    previous: Stored | None
    tally: Tally = field(default_factory=Tally)

    def answer(self) -> tuple[ChoiceReply, ResponseOutput]:
        """Return an empty answer, and what turns it into items."""
        reply = self.plan.reply()
        output = ResponseOutput(
            reply,
            carry_reasoning=self.body.includes(ENCRYPTED),
            namespaced=namespaced(self.body.offered),
            custom=self.plan.body.custom_tools(),
        )
        return reply, output


class ResponsesRoutes:
    """The handlers of `/v1/responses` and `/v1/responses/ID`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chats = Chats(service)
        self._store = ResponseStore()

    async def create(self, request: Request) -> Response:
        """Answer a conversation, or continue the one of a response that is kept."""
        job = await self._job(await read_body(request, ResponsesBody))
        if job.body.stream:
            return EventStream(events(self._numbered(job), named=True), done=b"")
        return json_reply(await until_disconnect(request, self._gather(job)))

    async def count(self, request: Request) -> Response:
        """Return how many tokens the prompt of a conversation has."""
        chat, _, _ = await self._chat(await read_body(request, ResponsesBody))
        self._service.check_model(chat.model)
        with in_responses():
            ids = await self._chats.encode(chat)
        return json_reply({"object": "response.input_tokens", "input_tokens": len(ids)})

    async def retrieve(self, request: Request) -> Response:
        """Return a response that is kept. Raises BadRequest where it is asked for as a stream."""
        for name in _STREAMED & request.query_params.keys():
            if request.query_params[name] not in ("", "false"):
                text = "a response that is kept is sent whole: leave it out"
                raise BadRequest(f"{name}: {text}", param=name, code="not_supported")
        stored = self._store.get(request.path_params["response_id"], self._owner(request))
        return Response(stored.reply, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a response."""
        name = request.path_params["response_id"]
        self._store.delete(name, self._owner(request))
        return json_reply({"id": name, "object": "response", "deleted": True})

    async def _chat(self, body: ResponsesBody) -> tuple[ChatBody, list[Item], Stored | None]:
        """Return a request as a chat, the items that it adds, and what it continues.

        Raises BadRequest, NotFound.
        """
        owner = self._service.namespaces.of(body.cache_salt, body.extra_key)
        previous = self._previous(body.previous_response_id, owner)
        added = self._store.resolve(body.items, owner)
        with in_responses():
            return body.chat([*await _history(previous), *added]), added, previous

    async def _job(self, body: ResponsesBody) -> _Job:
        chat, added, previous = await self._chat(body)
        with in_responses():
            plan = await self._chats.plan(chat)
        spec = plan.call.sampling
        if body.max_output_tokens:
            # More than the context leaves may be asked for: the answer then ends where it is full.
            most = body.max_output_tokens
            spec = replace(spec, max_new_tokens=None, default_new_tokens=most)
        if spec.grammar is not None and spec.grammar.field == "response_format":
            # It is compiled, and may be refused, when the request has long been taken.
            spec = replace(spec, grammar=msgspec.structs.replace(spec.grammar, field=FORMAT))
        plan = replace(plan, call=replace(plan.call, sampling=spec))
        head = response_object(
            body,
            name=f"resp_{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self._service.model_name,
            temperature=spec.temperature,
            top_p=spec.top_p,
        )
        return _Job(body, plan, head, added, previous)

    def _owner(self, request: Request) -> str:
        """Return the namespace of a request without a body. Raises BadRequest."""
        given = request.query_params
        return self._service.namespaces.of(given.get("cache_salt"), given.get("extra_key"))

    def _previous(self, name: str | None, owner: str) -> Stored | None:
        if name is None:
            return None
        try:
            return self._store.get(name, owner)
        except NotFound as fault:
            code = "previous_response_not_found"
            raise NotFound(fault.message, param="previous_response_id", code=code) from fault

    async def _gather(self, job: _Job) -> dict[str, Any]:
        plan = job.plan
        [[answer]] = await gather(self._service.manager, [plan.call])
        (reply, output), counter = job.answer(), plan.counter()
        deltas = reply.feed(answer.text, ended=True)
        answer.count_reasoning(counter, answer.token_ids)
        for _ in output.add(deltas, self._logprobs(answer.logprobs, answer.channels)):
            pass
        for _ in output.end(cut=_is_cut(answer.finish)):
            pass
        return self._end(job, answer.finish, reply, output, answer)

    async def _numbered(self, job: _Job) -> AsyncGenerator[Event, None]:
        """Yield the events of a response; a failure after the first one is an event, too."""
        number, stream = 0, self._stream(job)
        try:
            async for event in stream:
                yield {**event, "sequence_number": number}
                number += 1
        except RequestError as error:
            if not number:
                raise
            response = failed(job.head, error)
            yield {"type": "response.failed", "response": response, "sequence_number": number}
        finally:
            await stream.aclose()

    async def _stream(self, job: _Job) -> AsyncGenerator[Event, None]:
        plan, tally = job.plan, job.tally
        (reply, output), counter = job.answer(), plan.counter()
        begun = False
        merged = merge(self._service.manager, [plan.call])
        try:
            async for _, delta in merged:
                tally.count(delta)
                tally.count_reasoning(counter, delta.token_ids)
                if not begun:
                    begun = True
                    yield {"type": "response.created", "response": job.head}
                    yield {"type": "response.in_progress", "response": job.head}
                deltas = reply.feed(delta.text, ended=delta.finish is not None)
                for event in output.add(deltas, self._logprobs(delta.logprobs, delta.channels)):
                    yield event
                if delta.finish is not None:
                    for event in output.end(cut=_is_cut(delta.finish)):
                        yield event
                    response = self._end(job, delta.finish, reply, output, tally)
                    yield {"type": f"response.{response['status']}", "response": response}
        finally:
            await merged.aclose()

    def _logprobs(
        self, positions: TokenLogprobs | None, channels: list[TokenChannel]
    ) -> list[dict[str, Any]]:
        if positions is None or not any(channels):
            return []
        return chat_logprobs(positions, channels, self._service.speller)["content"]

    def _end(
        self,
        job: _Job,
        finish: Finish | None,
        reply: ChoiceReply,
        output: ResponseOutput,
        tally: Tally,
    ) -> dict[str, Any]:
        """Return the whole response, and keep it. Raises Aborted where it was aborted."""
        if finish is not None and finish.type == "abort":
            raise Aborted(finish.message or "the request was aborted")
        self._chats.prepare_next(job.plan, reply, finish)
        invalid = reply.invalid_calls
        response = finished(job.head, output.items, tally, cut=_is_cut(finish), invalid=invalid)
        if response["store"]:
            self._store.put(
                response["id"],
                job.plan.call.namespace,
                msgspec.json.encode(response),
                added=job.added,
                output=msgspec.convert(output.items, list[Item]),
                previous=job.previous,
            )
        return response


async def _history(previous: Stored | None) -> list[Item]:
    """Return the earlier items. Raises BadRequest where no request could have that many."""
    size = 0 if previous is None else previous.history_bytes
    if size > MAX_BODY_BYTES:
        text = f"the responses before this one have more than {MAX_BODY_BYTES >> 20} MiB of items: "
        raise BadRequest(f"{text}send those that are needed", param="previous_response_id")
    if size < LONG_BODY_BYTES:
        return history(previous)
    return await asyncio.to_thread(history, previous)


def _is_cut(finish: Finish | None) -> bool:
    return finish is not None and finish.type == "length"
