"""The native dialect: what `/generate` says to SGLang's clients and its language, without HTTP.

A stream's chunks carry the whole text, ids and log-probabilities so far; clients cut off what
they have seen.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import msgspec

from runtime.errors import BadRequest
from runtime.messages import Logprobs
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.server.json_slices import LazyRows
from runtime.server.native_plan import NativePlan, has_many_ids, plan_native
from runtime.server.prompt import PromptedBody, Prompts
from runtime.server.runs import Answer, gather, merge
from runtime.server.service import Service
from runtime.server.spelling import LEAST_LOGPROB, Speller
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Delta, Finish

# Rows of log-probabilities that are rendered before others have a turn.
SLICE_ROWS = 1 << 14
# Of one log-probability that is not packed, its token's id included.
_OBJECT_BYTES = 128
# Checking one, with a bias of a thousand tokens, takes half a millisecond.
_SAMPLINGS_AT_ONCE = 16
# Each chunk of a stream repeats those of the prompt.
MAX_STREAMED_PROMPT_LOGPROBS = 1 << 18


class Generations:
    """Continues prompts, one or a batch."""

    def __init__(self, service: Service, prompts: Prompts) -> None:
        self._service = service
        self._prompts = prompts

    async def plan(self, body: PromptedBody) -> NativePlan:
        """Return the calls that `body` asks for. Raises BadRequest."""
        resolved, boundaries = await self._prompts.resolve(body)
        plan = partial(plan_native, self._service, resolved, boundaries=boundaries)
        ids, sampling = resolved.input_ids, resolved.sampling_params
        many = isinstance(sampling, list) and len(sampling) > _SAMPLINGS_AT_ONCE
        if many or (ids is not None and has_many_ids(ids)):
            return await self._service.manager.in_thread(plan)
        return plan()

    async def gather(
        self, plan: NativePlan, *, lazy: bool = False
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the finished answer, or a list of them. Raises RequestError.

        lazy  log-probabilities are `LazyRows`, which are rendered as they are written
        """
        answers = await self._answers(plan, lazy=lazy)
        return answers[0] if plan.single else answers

    async def _answers(self, plan: NativePlan, *, lazy: bool) -> list[dict[str, Any]]:
        with self._service.batches.named(plan.rid, plan.calls):
            per_call = await gather(self._service.manager, plan.calls, at_once=self._room(plan))
        flat = [
            (call, answer)
            for call, answers in zip(plan.calls, per_call, strict=True)
            for answer in answers
        ]
        replies: list[dict[str, Any]] = []
        for name, (call, answer) in zip(plan.ids, flat, strict=True):
            replies.append(await self._reply(plan, call, Shown(answer, name), lazy=lazy))
        return replies

    def _room(self, plan: NativePlan) -> int | None:
        """Return how many calls the queue takes at a time, where there may be more than that.

        Rows do not count: they are left to who asks meanwhile.
        """
        if not self._service.trusted:
            return None
        return max(1, self._service.config.max_queued_requests // plan.calls[0].sampling.n)

    async def stream(
        self, plan: NativePlan, *, as_json: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield each answer so far; closing the generator ends the calls. Raises RequestError.

        as_json  text and ids are `msgspec.Raw`, of which only what is new is encoded each time
        """
        shown = [Shown(Answer(), name, as_json=as_json) for name in plan.ids]
        with self._service.batches.named(plan.rid, plan.calls):
            merged = merge(self._service.manager, plan.calls, at_once=self._room(plan))
            try:
                async for number, delta in merged:
                    place = plan.position(number, delta.index)
                    shown[place].add(delta)
                    if not self._service.trusted:
                        _check_repeated(plan.calls[number].logprobs, delta.prompt_logprobs)
                    chunk = await self._reply(plan, plan.calls[number], shown[place])
                    if not plan.single:
                        chunk["index"] = place
                    yield chunk
            finally:
                await merged.aclose()

    async def _reply(
        self, plan: NativePlan, call: GenerateCall, shown: "Shown", *, lazy: bool = False
    ) -> dict[str, Any]:
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
            if lazy:
                _add_lazy_logprobs(meta, answer, call.logprobs, speller)
            else:
                await shown.catch_up(call.logprobs, speller)
                _add_logprobs(meta, shown, call.logprobs)
        if answer.finish is not None:
            meta["e2e_latency"] = time.monotonic() - plan.started_s
        return {"text": shown.text(), "output_ids": shown.token_ids(), "meta_info": meta}


class Shown:
    """An answer with its name and what is rendered of it already.

    as_json        keep text and ids as JSON, too
    input, output  rows of log-probabilities
    """

    def __init__(self, answer: Answer, name: str, *, as_json: bool = False) -> None:
        self.answer = answer
        self.name = name
        self.input = _Rows()
        self.output = _Rows()
        self._as_json = as_json
        self._text = bytearray()
        self._ids = bytearray()

    def add(self, delta: Delta) -> None:
        """Append news. Raises RequestFailed where the choice failed in the engine."""
        self.answer.add(delta)
        if not self._as_json:
            return
        # Escapes stand for single characters, so that JSON of a text is that of its pieces.
        self._text += msgspec.json.encode(delta.text)[1:-1]
        if delta.token_ids:
            self._ids += b"," if self._ids else b""
            self._ids += msgspec.json.encode(delta.token_ids)[1:-1]

    def text(self) -> str | msgspec.Raw:
        """Return the text so far."""
        return msgspec.Raw(b'"%b"' % self._text) if self._as_json else self.answer.text

    def token_ids(self) -> list[int] | msgspec.Raw:
        """Return the ids so far, which the caller may keep."""
        return msgspec.Raw(b"[%b]" % self._ids) if self._as_json else list(self.answer.token_ids)

    async def catch_up(self, asked: Logprobs, speller: Speller | None) -> None:
        """Render what came since the last time; others have turns meanwhile."""
        most = max(1, SLICE_ROWS // _rows_each(asked))
        answer = self.answer
        sides = (self.input, answer.prompt_logprobs), (self.output, answer.logprobs)
        for rows, positions in sides:
            count = len(positions)
            while len(rows.tokens) < count:
                rows.add(positions.part(len(rows.tokens), len(rows.tokens) + most), speller)
                if len(rows.tokens) < count:
                    await asyncio.sleep(0)


class _Rows:
    """Rendered rows: (log-probability, id, text) of the tokens, of the best, of the picked."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.top: list[Any] = []
        self.picked: list[Any] = []

    def add(self, positions: TokenLogprobs, speller: Speller | None) -> None:
        """Render the next positions."""
        self.tokens += _token_rows(positions, speller)
        self.top += _entry_rows(positions, positions.top, speller)
        self.picked += _entry_rows(positions, positions.picked, speller)


def _token_rows(positions: TokenLogprobs, speller: Speller | None) -> list[Any]:
    pairs = zip(positions.values, positions.ids, strict=True)
    return [_row(value, token_id, speller) for value, token_id in pairs]


def _entry_rows(
    positions: TokenLogprobs, source: list[list[tuple[float, int]]], speller: Speller | None
) -> list[Any]:
    return [
        None if value is None else [_row(v, i, speller) for v, i in entries]
        for value, entries in zip(positions.values, source, strict=False)
    ]


def _row(value: float | None, token_id: int, speller: Speller | None) -> list[Any]:
    shown = None if value is None else max(value, LEAST_LOGPROB)
    return [shown, token_id, speller.text(token_id) if speller else None]


def _rows_each(asked: Logprobs) -> int:
    return 1 + asked.top + len(asked.token_ids)


def _check_repeated(asked: Logprobs | None, told: PromptLogprobs | None) -> None:
    """Raise BadRequest where every chunk of a stream would repeat megabytes."""
    if asked is None or told is None:
        return
    count = len(told) * _rows_each(asked)
    if count > MAX_STREAMED_PROMPT_LOGPROBS:
        raise BadRequest(
            f"each chunk of a stream would repeat {count} log-probabilities of the prompt, the most"
            f" is {MAX_STREAMED_PROMPT_LOGPROBS}: ask without stream, or from a later"
            " logprob_start_len on",
            param="logprob_start_len",
        )


def _add_logprobs(meta: dict[str, Any], shown: Shown, asked: Logprobs) -> None:
    for side, rows in (("input", shown.input), ("output", shown.output)):
        meta[f"{side}_token_logprobs"] = list(rows.tokens)
        if asked.top:
            meta[f"{side}_top_logprobs"] = list(rows.top)
        if asked.token_ids:
            meta[f"{side}_token_ids_logprobs"] = list(rows.picked)


def _add_lazy_logprobs(
    meta: dict[str, Any], answer: Answer, asked: Logprobs, speller: Speller | None
) -> None:
    """Put log-probabilities into `meta` that are rendered as they are written."""

    def lazy(
        positions: PromptLogprobs | TokenLogprobs,
        each: int,
        render: Callable[[TokenLogprobs], list[Any]],
    ) -> LazyRows:
        return LazyRows(len(positions), each, lambda a, b: render(positions.part(a, b)))

    for side, positions in (("input", answer.prompt_logprobs), ("output", answer.logprobs)):
        # Each position is unpacked with all that was asked of it.
        each = 3 * _rows_each(asked)
        rows = lazy(positions, each, lambda p: _token_rows(p, speller))
        rows.held_bytes = _held_bytes(positions, asked)
        meta[f"{side}_token_logprobs"] = rows
        if asked.top:
            rows = lazy(positions, each, lambda p: _entry_rows(p, p.top, speller))
            meta[f"{side}_top_logprobs"] = rows
        if asked.token_ids:
            rows = lazy(positions, each, lambda p: _entry_rows(p, p.picked, speller))
            meta[f"{side}_token_ids_logprobs"] = rows


def _held_bytes(positions: PromptLogprobs | TokenLogprobs, asked: Logprobs) -> int:
    if isinstance(positions, PromptLogprobs):
        return positions.size_bytes
    return _OBJECT_BYTES * len(positions) * _rows_each(asked)


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
