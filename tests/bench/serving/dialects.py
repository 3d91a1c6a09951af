"""The three ways in which servers are asked for text, and how each tells it piece by piece."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.bench.serving.outcome import Outcome
from tests.bench.serving.prompt import Prompt

Json = dict[str, Any]
# How an answer ends that the server gave up; clients get what there was by then.
_GIVEN_UP = ("abort", "error")


class Dialect(Protocol):
    """One endpoint.

    path     of the endpoint
    by_text  prompts go as text, so that the server's token counts are not the client's
    """

    path: str
    by_text: bool

    def body(self, prompt: Prompt, output_tokens: int) -> Json:
        """Return the request: greedy, streamed, not ended by the model where that can be said."""
        ...

    def read(self, event: Json, outcome: Outcome, now_s: float) -> None:
        """Take in one event of the stream."""
        ...


@dataclass(slots=True)
class Native:
    """SGLang's `/generate`, its chunks cumulative or not.

    extra  goes into every body
    """

    extra: Json = field(default_factory=dict)
    path: str = "/generate"
    by_text: bool = False

    def body(self, prompt: Prompt, output_tokens: int) -> Json:
        """Return the request, its prompt as token ids."""
        sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True}
        return {
            "input_ids": prompt.ids, "sampling_params": sampling, "stream": True, **self.extra
        }  # fmt: skip

    def read(self, event: Json, outcome: Outcome, now_s: float) -> None:
        """Take in one event of the stream."""
        meta: Json = event.get("meta_info") or {}
        outcome.prompt_tokens = meta.get("prompt_tokens", outcome.prompt_tokens)
        outcome.cached_tokens = meta.get("cached_tokens", outcome.cached_tokens)
        ids: Sequence[int] = event.get("output_ids") or ()
        count: int = meta.get("completion_tokens", len(outcome.answer_ids) + len(ids))
        if len(ids) == count:
            outcome.answer_ids = list(ids)
        else:
            outcome.answer_ids.extend(ids)
        outcome.output_tokens = count
        outcome.arrived(now_s, count)
        _note_end(outcome, (meta.get("finish_reason") or {}).get("type"))


@dataclass(slots=True)
class Completions:
    """OpenAI's `/v1/completions`, its prompt as token ids.

    plain  say nothing that OpenAI does not know: then a model may end early, and each chunk
           counts as one token
    """

    model: str
    extra: Json = field(default_factory=dict)
    plain: bool = False
    path: str = "/v1/completions"
    by_text: bool = False

    def body(self, prompt: Prompt, output_tokens: int) -> Json:
        """Return the request."""
        more = {} if self.plain else {"return_token_ids": True}
        head = {"model": self.model, "prompt": prompt.ids, "max_tokens": output_tokens}
        return {**head, **_openai_fields(self.plain), **more, **self.extra}

    def read(self, event: Json, outcome: Outcome, now_s: float) -> None:
        """Take in one event of the stream."""
        news = 0
        for choice in event.get("choices") or ():
            ids: Sequence[int] = choice.get("token_ids") or ()
            outcome.answer_ids.extend(ids)
            outcome.answer_text += choice.get("text") or ""
            _note_end(outcome, choice.get("finish_reason"))
            news += len(ids) or bool(choice.get("text"))
        _read_usage(event, outcome, now_s, news=news)


@dataclass(slots=True)
class Chat:
    """OpenAI's `/v1/chat/completions`: prompts are words, and a tokenizer may count them otherwise.

    plain  as for `Completions`
    """

    model: str
    extra: Json = field(default_factory=dict)
    plain: bool = False
    path: str = "/v1/chat/completions"
    by_text: bool = True

    def body(self, prompt: Prompt, output_tokens: int) -> Json:
        """Return the request."""
        messages = [{"role": role, "content": text} for role, text in prompt.messages]
        head = {"model": self.model, "messages": messages, "max_tokens": output_tokens}
        return {**head, **_openai_fields(self.plain), **self.extra}

    def read(self, event: Json, outcome: Outcome, now_s: float) -> None:
        """Take in one event of the stream."""
        news = 0
        for choice in event.get("choices") or ():
            delta: Json = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            outcome.reasoned = outcome.reasoned or bool(thought)
            outcome.answer_text += delta.get("content") or ""
            _note_end(outcome, choice.get("finish_reason"))
            news += bool(thought or delta.get("content"))
        _read_usage(event, outcome, now_s, news=news)


def make_dialect(
    api: str, model: str, *, extra: Json | None = None, plain: bool = False
) -> Dialect:
    """Return the dialect called `api`: generate, completions or chat."""
    match api:
        case "generate":
            return Native(extra or {})
        case "completions":
            return Completions(model, extra or {}, plain)
        case _:
            return Chat(model, extra or {}, plain)


def _note_end(outcome: Outcome, finish: str | None) -> None:
    if finish in _GIVEN_UP:
        outcome.error = f"the server ended it: {finish}"


def _openai_fields(plain: bool) -> Json:
    options: Json = {"include_usage": True}
    fields: Json = {"temperature": 0, "stream": True, "stream_options": options}
    if not plain:
        options["continuous_usage_stats"] = True
        fields["ignore_eos"] = True
    return fields


def _read_usage(event: Json, outcome: Outcome, now_s: float, *, news: int) -> None:
    """Count tokens as the server does where its chunks say so, else as they come."""
    count = outcome.seen_tokens + news
    usage: Json | None = event.get("usage")
    if usage:
        outcome.prompt_tokens = usage.get("prompt_tokens", outcome.prompt_tokens)
        outcome.output_tokens = usage.get("completion_tokens", outcome.output_tokens)
        details: Json = usage.get("prompt_tokens_details") or {}
        outcome.cached_tokens = details.get("cached_tokens", outcome.cached_tokens)
        count = outcome.output_tokens or count
    # The last event of a stream is usage alone: it brings no token.
    if event.get("choices"):
        outcome.arrived(now_s, count)
