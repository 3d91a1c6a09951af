"""`/v1/completions`."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest
from runtime.messages import Logprobs
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.server.body import read_body
from runtime.server.caller import caller
from runtime.server.native_plan import NO_PROMPT_LOGPROBS, has_many_ids, id_arrays
from runtime.server.native_schema import check_priority
from runtime.server.openai import (
    Envelope,
    LegacyLogprobs,
    Usage,
    finish_fields,
    rendered,
    token_id_fields,
    usage_fields,
    usage_report,
)
from runtime.server.openai_schema import CompletionBody
from runtime.server.replies import EventStream, event, json_reply, until_disconnect
from runtime.server.runs import Answer, gather, labels, merge
from runtime.server.service import Service
from runtime.tokenizer.call import GenerateCall

Prompt = str | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A request, ready to run.

    calls  one per prompt
    echo   each prompt's text where it is to precede the answer, else ""
    """

    body: CompletionBody
    envelope: Envelope
    calls: list[GenerateCall]
    echo: list[str]

    def place(self, call: int, choice: int) -> int:
        """Return the index of a choice in the reply."""
        return call * self.calls[call].sampling.n + choice


class CompletionRoutes:
    """The handler of `/v1/completions`, and the checks of its body."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> Response:
        """Continue one prompt or several."""
        body = await read_body(request, CompletionBody)
        plan = await self.plan(body)
        if body.stream:
            return EventStream(self._stream(plan))
        return json_reply(await until_disconnect(request, self._gather(plan)))

    async def plan(self, body: CompletionBody) -> CompletionPlan:
        """Return the calls that `body` asks for. Raises BadRequest or NotFound."""
        service = self._service
        service.check_model(body.model)
        prompts = await self._prompts(body)
        service.check_fan_out(len(prompts), body.n or 1)
        spec = body.spec(vocab_size=service.vocab_size, defaults=service.defaults)
        for prompt in prompts:
            if not isinstance(prompt, str):
                service.check_token_ids(prompt, param="prompt")
        start = 0 if body.echo else NO_PROMPT_LOGPROBS
        rids = labels(body.rid, len(prompts))
        calls = [
            GenerateCall(
                sampling=spec,
                text=prompt if isinstance(prompt, str) else None,
                input_ids=None if isinstance(prompt, str) else prompt,
                logprobs=None if body.logprobs is None else Logprobs(start, body.logprobs),
                namespace=service.namespaces.of(body.cache_salt, body.extra_key),
                priority=check_priority(body.priority),
                share=caller().share,
                timeout_s=caller().timeout_s,
                stream=bool(body.stream),
                rid=rid,
            )
            for prompt, rid in zip(prompts, rids, strict=True)
        ]
        echo = [await self._text(call) if body.echo else "" for call in calls]
        name = service.model_name
        return CompletionPlan(
            body, Envelope.make("cmpl", "text_completion", body, name), calls, echo
        )

    async def _prompts(self, body: CompletionBody) -> list[Prompt]:
        if isinstance(body.prompt, list) and has_many_ids(body.prompt):
            return await self._service.manager.in_thread(partial(_prompts, self._service, body))
        return _prompts(self._service, body)

    async def _text(self, call: GenerateCall) -> str:
        if call.text is not None:
            return call.text
        assert call.input_ids is not None
        manager, ids = self._service.manager, np.asarray(call.input_ids)
        work = partial(
            manager.tokenizer.decode,
            ids.tolist(),
            skip_special_tokens=call.sampling.skip_special_tokens,
        )
        return await manager.in_thread(work, chars=len(ids))

    def _logprobs(self, plan: CompletionPlan, number: int) -> LegacyLogprobs:
        special = self._service.manager.tokenizer.special_ids
        skip = plan.calls[number].sampling.skip_special_tokens
        hidden = special if skip else frozenset[int]()
        return LegacyLogprobs(self._service.speller, hidden, plan.echo[number])

    async def _rendered(
        self,
        call: GenerateCall,
        prompt: PromptLogprobs | TokenLogprobs | None,
        output: TokenLogprobs | None,
        legacy: LegacyLogprobs,
    ) -> dict[str, Any] | None:
        """Return the next log-probabilities of a choice, those of its prompt first."""
        asked = call.logprobs
        if asked is None:
            return None

        def render() -> dict[str, Any]:
            positions = TokenLogprobs()
            positions.extend(prompt.part(0, None) if prompt else None)
            positions.extend(output)
            return legacy.render(positions, top=asked.top > 0)

        count = (len(prompt or ()) + len(output or ())) * (1 + asked.top)
        return await rendered(self._service.manager, count, render)

    async def _gather(self, plan: CompletionPlan) -> dict[str, Any]:
        with self._service.batches.named(plan.body.rid, plan.calls):
            per_call = await gather(self._service.manager, plan.calls)
        choices = [
            await self._choice(plan, number, place, answer)
            for number, answers in enumerate(per_call)
            for place, answer in enumerate(answers)
        ]
        return plan.envelope.wrap(choices, usage=usage_report(per_call))

    async def _choice(
        self, plan: CompletionPlan, number: int, choice: int, answer: Answer
    ) -> dict[str, Any]:
        call = plan.calls[number]
        logprobs = None
        if call.logprobs is not None:
            legacy = self._logprobs(plan, number)
            logprobs = await self._rendered(call, answer.prompt_logprobs, answer.logprobs, legacy)
        return {
            "index": plan.place(number, choice),
            "text": plan.echo[number] + answer.text,
            "logprobs": logprobs,
            **token_id_fields(plan.body, answer.token_ids),
            **finish_fields(answer.finish),
        }

    async def _stream(self, plan: CompletionPlan) -> AsyncGenerator[bytes, None]:
        body, usage = plan.body, Usage(plan.calls)
        legacy = [
            [self._logprobs(plan, number) for _ in range(call.sampling.n)]
            for number, call in enumerate(plan.calls)
        ]
        begun: set[int] = set()
        with self._service.batches.named(body.rid, plan.calls):
            merged = merge(self._service.manager, plan.calls)
            try:
                async for number, delta in merged:
                    usage.tallies[number][delta.index].count(delta)
                    place = plan.place(number, delta.index)
                    chunk = {
                        "index": place,
                        "text": ("" if place in begun else plan.echo[number]) + delta.text,
                        "logprobs": await self._rendered(
                            plan.calls[number],
                            delta.prompt_logprobs,
                            delta.logprobs,
                            legacy[number][delta.index],
                        ),
                        **token_id_fields(body, delta.token_ids),
                        **finish_fields(delta.finish),
                    }
                    begun.add(place)
                    yield event(plan.envelope.wrap([chunk], **usage_fields(body, usage)))
            finally:
                await merged.aclose()
        if body.include_usage:
            yield event(plan.envelope.wrap([], usage=usage.report()))


def _prompts(service: Service, body: CompletionBody) -> list[Prompt]:
    prompt = body.prompt
    if prompt is None:
        raise BadRequest("prompt is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        service.refuse_long(prompt)
    elif prompt:
        service.check_prompts(len(prompt))
    texts = [item for item in prompt if isinstance(item, str)]
    if texts:
        if len(texts) != len(prompt):
            raise BadRequest("prompt mixes text and token ids", param="prompt")
        return list(texts)
    ids = [item for item in prompt if not isinstance(item, str)]
    return list(id_arrays(ids, param="prompt", check=service.refuse_long)[0])
