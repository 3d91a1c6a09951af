"""What the two OpenAI endpoints share: ids, usage, finish, log-probabilities."""

import asyncio
import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.messages import TokenLogprobs
from runtime.server.openai_schema import CommonBody
from runtime.server.runs import Tally
from runtime.server.spelling import LEAST_LOGPROB, Speller
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.channel_text import TokenChannel
from runtime.tokenizer.choice import Finish
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.threads import LONG_CHARS

# Log-probabilities that are rendered while others wait: some milliseconds of work.
_RENDERED_AT_ONCE = 1 << 10
_LOGPROBS_FIELDS = {"content": "content", "reasoning": "reasoning_content"}

_Rendered = TypeVar("_Rendered")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The head of every reply and chunk of one request."""

    id: str
    object: str
    created: int
    model: str

    @classmethod
    def make(cls, prefix: str, kind: str, body: CommonBody, model: str) -> "Envelope":
        """Return the head for a request; a client's rid is its id."""
        name = body.rid or f"{prefix}-{uuid.uuid4().hex}"
        return cls(name, kind, int(time.time()), model)

    def wrap(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return the body around `choices`."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


class Usage:
    """The tallies of a request, by call and choice."""

    def __init__(self, calls: Sequence[GenerateCall]) -> None:
        self.tallies = [[Tally() for _ in range(call.sampling.n)] for call in calls]

    def report(self) -> dict[str, Any]:
        """Return the `usage` object so far."""
        return usage_report(self.tallies)


def usage_report(tallies: Iterable[Sequence[Tally]]) -> dict[str, Any]:
    """Return the `usage` object; a prompt counts once, however many choices it has.

    The cached tokens of the prompt and the rest of it are given under the names of DeepSeek's API,
    too (`prompt_cache_hit_tokens`, `prompt_cache_miss_tokens`).
    """
    prompt = cached = completion = 0
    reasoning: list[int] = []
    for choices in tallies:
        prompt += choices[0].prompt_tokens
        cached += choices[0].cached_tokens
        completion += sum(choice.completion_tokens for choice in choices)
        reasoning += [c.reasoning_tokens for c in choices if c.reasoning_tokens is not None]
    report: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": prompt - cached,
    }
    if reasoning:
        report["completion_tokens_details"] = {"reasoning_tokens": sum(reasoning)}
    return report


def finish_fields(finish: Finish | None) -> dict[str, Any]:
    """Return `finish_reason` and `matched_stop` of a choice."""
    if finish is None:
        return {"finish_reason": None}
    return {"finish_reason": finish.type, "matched_stop": finish.matched}


def token_id_fields(body: CommonBody, ids: Sequence[int]) -> dict[str, Any]:
    """Return the new token ids as vLLM shows them, if asked; the prompt's are never among them."""
    return {"token_ids": list(ids)} if body.return_token_ids else {}


def usage_fields(body: CommonBody, usage: Usage) -> dict[str, Any]:
    """Return the `usage` field of a chunk that is not the last: null, or so far, if asked."""
    if body.continuous_usage:
        return {"usage": usage.report()}
    return {"usage": None} if body.include_usage else {}


async def rendered(
    manager: TokenizerManager, count: int, render: Callable[[], _Rendered]
) -> _Rendered:
    """Return what `render` returns, in a turn of the loop of its own, or in a thread.

    count  log-probabilities that it renders, each some microsecond
    """
    if count <= _RENDERED_AT_ONCE:
        # There may be many choices of few.
        await asyncio.sleep(0)
        return render()
    return await manager.in_thread(render, chars=LONG_CHARS)


def chat_logprobs(
    positions: TokenLogprobs, channels: Iterable[TokenChannel], speller: Speller
) -> dict[str, Any]:
    """Return `logprobs` of a chat choice.

    channels  of `positions`; the last ones may be missing
    Tokens without a channel, such as marks and the markup of calls, are left out. The tokens of the
    reasoning are in `reasoning_content`, as in DeepSeek's API; without any there is no such field.
    """
    fields: dict[str, Any] = {"content": [], "refusal": None}
    tokens = zip(channels, positions.values, positions.ids, strict=False)
    for k, (channel, value, token_id) in enumerate(tokens):
        if channel is None:
            continue
        top = positions.top[k] if positions.top else []
        entry = _chat_entry(value, token_id, speller)
        entry["top_logprobs"] = [_chat_entry(v, i, speller) for v, i in top]
        fields.setdefault(_LOGPROBS_FIELDS[channel], []).append(entry)
    return fields


def _chat_entry(value: float | None, token_id: int, speller: Speller) -> dict[str, Any]:
    return {
        "token": speller.label(token_id),
        "logprob": LEAST_LOGPROB if value is None else max(value, LEAST_LOGPROB),
        "bytes": list(speller.bytes_of(token_id)),
    }


class LegacyLogprobs:
    """`logprobs` of one completion choice, with offsets into its growing text.

    hidden  ids that are left out of the text
    echoed  what the text begins with: where a client's prompt spells a hidden token, it is there
    """

    def __init__(self, speller: Speller, hidden: frozenset[int], echoed: str = "") -> None:
        self._speller = speller
        self._hidden = hidden
        self._echoed = echoed
        self._offset = 0
        # Bytes that are no UTF-8 are characters of the text, too.
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def render(self, positions: TokenLogprobs, *, top: bool) -> dict[str, Any]:
        """Return the next positions; `top` adds the alternatives and the token itself."""
        spell = self._speller.label
        values = [None if v is None else max(v, LEAST_LOGPROB) for v in positions.values]
        return {
            "tokens": [spell(token_id) for token_id in positions.ids],
            "token_logprobs": values,
            "top_logprobs": self._alternatives(values, positions) if top else None,
            "text_offset": [self._advance(token_id) for token_id in positions.ids],
        }

    def _alternatives(
        self, values: Sequence[float | None], positions: TokenLogprobs
    ) -> list[dict[str, float] | None]:
        spell = self._speller.label
        rows: list[dict[str, float] | None] = []
        for k, (value, token_id) in enumerate(zip(values, positions.ids, strict=True)):
            if value is None:
                rows.append(None)
                continue
            best = positions.top[k] if positions.top else []
            # Labels can coincide (a token and its twin): the likelier one, first, stays.
            row: dict[str, float] = {}
            for likelihood, other in best:
                row.setdefault(spell(other), max(likelihood, LEAST_LOGPROB))
            row.setdefault(spell(token_id), value)
            rows.append(row)
        return rows

    def _advance(self, token_id: int) -> int:
        """Return where the token's text begins, in characters."""
        # A character counts from its first byte on, whichever token brings the others.
        at = self._offset + bool(self._decoder.getstate()[0])
        shown = token_id not in self._hidden
        if shown or self._echoed.startswith(self._speller.text(token_id), at):
            self._offset += len(self._decoder.decode(self._speller.bytes_of(token_id)))
        return at
