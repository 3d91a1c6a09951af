"""The native dialect: what `/generate` says to SGLang's clients and its language, without HTTP.

A stream's chunks carry the whole text, ids and log-probabilities so far; clients cut off what
they have seen.
"""

import time
from collections.abc import AsyncGenerator
from typing import Any

from runtime.messages import Logprobs
from runtime.server.native_plan import NativePlan, plan_native
from runtime.server.prompt import PromptedBody, Prompts
from runtime.server.runs import Answer, PositionLogprobs, gather, merge
from runtime.server.service import Service
from runtime.server.spelling import LEAST_LOGPROB, Speller
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Finish


class Generations:
    """Continues prompts, one or a batch."""

    def __init__(self, service: Service, prompts: Prompts) -> None:
        self._service = service
        self._prompts = prompts

    async def plan(self, body: PromptedBody) -> NativePlan:
        """Return the calls that `body` asks for. Raises BadRequest."""
        return plan_native(self._service, await self._prompts.resolve(body))

    async def gather(self, plan: NativePlan) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the finished answer, or a list of them. Raises RequestError."""
        answers = await self._answers(plan)
        return answers[0] if plan.single else answers

    async def _answers(self, plan: NativePlan) -> list[dict[str, Any]]:
        with self._service.batches.named(plan.rid, plan.calls):
            per_call = await gather(self._service.manager, plan.calls, at_once=self._room(plan))
        flat = [
            (call, answer)
            for call, answers in zip(plan.calls, per_call, strict=True)
            for answer in answers
        ]
        return [
            self._reply(plan, call, _Shown(answer, name))
            for name, (call, answer) in zip(plan.ids, flat, strict=True)
        ]

    def _room(self, plan: NativePlan) -> int | None:
        """Return how many calls the queue takes at a time, where there may be more than that."""
        if not self._service.trusted:
            return None
        room = self._service.config.max_queued_requests + self._service.manager.rows
        return max(1, room // plan.calls[0].sampling.n)

    async def stream(self, plan: NativePlan) -> AsyncGenerator[dict[str, Any], None]:
        """Yield each answer so far; closing the generator ends the calls. Raises RequestError."""
        shown = [_Shown(Answer(), name) for name in plan.ids]
        with self._service.batches.named(plan.rid, plan.calls):
            merged = merge(self._service.manager, plan.calls)
            try:
                async for number, delta in merged:
                    place = plan.position(number, delta.index)
                    shown[place].answer.add(delta)
                    chunk = self._reply(plan, plan.calls[number], shown[place])
                    if not plan.single:
                        chunk["index"] = place
                    yield chunk
            finally:
                await merged.aclose()

    def _reply(self, plan: NativePlan, call: GenerateCall, shown: "_Shown") -> dict[str, Any]:
        answer = shown.answer
        meta: dict[str, Any] = {
            "id": shown.name,
            "finish_reason": _finish_reason(answer.finish, answer.completion_tokens),
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
            "weight_version": "default",
        }
        if call.logprobs is not None:
            speller = self._service.speller if plan.text_in_logprobs else None
            _add_logprobs(meta, shown, call.logprobs, speller)
        if answer.finish is not None:
            meta["e2e_latency"] = time.monotonic() - plan.started_s
        # Lists of its own: who reads in this process may keep a chunk while the answer grows.
        return {"text": answer.text, "output_ids": list(answer.token_ids), "meta_info": meta}


class _Shown:
    """An answer with its name and the rows of its log-probabilities that are rendered already."""

    def __init__(self, answer: Answer, name: str) -> None:
        self.answer = answer
        self.name = name
        self.input = _Rows()
        self.output = _Rows()


class _Rows:
    """Rendered rows: (log-probability, id, text) of the tokens, of the best, of the picked."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.top: list[Any] = []
        self.picked: list[Any] = []

    def catch_up(self, positions: PositionLogprobs, speller: Speller | None) -> None:
        """Render what came since the last time."""
        new = slice(len(self.tokens), None)
        values = positions.values[new]
        self.tokens += [
            _row(v, i, speller) for v, i in zip(values, positions.ids[new], strict=True)
        ]
        for rows, source in ((self.top, positions.top), (self.picked, positions.picked)):
            rows += [
                None if value is None else [_row(v, i, speller) for v, i in entries]
                for value, entries in zip(values, source[new], strict=False)
            ]


def _row(value: float | None, token_id: int, speller: Speller | None) -> list[Any]:
    shown = None if value is None else max(value, LEAST_LOGPROB)
    return [shown, token_id, speller.text(token_id) if speller else None]


def _add_logprobs(
    meta: dict[str, Any], shown: _Shown, asked: Logprobs, speller: Speller | None
) -> None:
    shown.input.catch_up(shown.answer.prompt_logprobs, speller)
    shown.output.catch_up(shown.answer.logprobs, speller)
    for side, rows in (("input", shown.input), ("output", shown.output)):
        meta[f"{side}_token_logprobs"] = list(rows.tokens)
        if asked.top:
            meta[f"{side}_top_logprobs"] = list(rows.top)
        if asked.token_ids:
            meta[f"{side}_token_ids_logprobs"] = list(rows.picked)


def _finish_reason(finish: Finish | None, completion_tokens: int) -> dict[str, Any] | None:
    match finish:
        case None:
            return None
        case Finish(type="stop", matched=matched):
            return {"type": "stop", "matched": matched}
        case Finish(type="length"):
            return {"type": "length", "length": completion_tokens}
        case _:
            return {"type": finish.type, "message": finish.message}
