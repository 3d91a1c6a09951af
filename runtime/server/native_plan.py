"""The native body as calls: a value for each prompt, everything checked before anything runs."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from runtime.errors import BadRequest, BadSampling
from runtime.messages import Logprobs
from runtime.sampling import SamplingSpec
from runtime.server.caller import caller
from runtime.server.native_schema import GenerateBody, SamplingParams, check_priority
from runtime.server.runs import labels
from runtime.server.service import Service
from runtime.tokenizer.call import GenerateCall

MAX_TOP_LOGPROBS = 128
MAX_TOKEN_IDS_LOGPROB = 1024
# Log-probabilities that the answers to one request may hold, 300 bytes each; and one answer that
# is streamed, whose every chunk repeats them.
MAX_OUTPUT_LOGPROBS = 1 << 22
MAX_STREAMED_OUTPUT_LOGPROBS = 1 << 18
# Ids that are made arrays of while others wait: some milliseconds of work.
IDS_AT_ONCE = 1 << 16
# A start that no prompt reaches: nothing of the prompt is reported.
NO_PROMPT_LOGPROBS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class NativePlan:
    """A request, ready to run.

    calls   one per prompt
    ids     name of each answer, prompt by prompt and choice by choice
    rid     the client's name of a batch
    single  one prompt, one choice: the reply is an object, else a list
    """

    calls: list[GenerateCall]
    ids: list[str]
    rid: str | None
    single: bool
    text_in_logprobs: bool
    started_s: float

    def position(self, call: int, choice: int) -> int:
        """Return the place of an answer in the reply."""
        return call * self.calls[call].sampling.n + choice


def plan_native(
    service: Service, body: GenerateBody, *, boundaries: tuple[int, ...] = ()
) -> NativePlan:
    """Return the calls that `body` asks for. Raises BadRequest.

    boundaries  of each prompt, see `GenerateCall`
    """
    prompts, batch = _prompts(service, body)
    count = len(prompts)
    service.check_prompts(count)
    params = _per_prompt(body.sampling_params or SamplingParams(), count, "sampling_params")
    specs = [one.spec(vocab_size=service.vocab_size, defaults=service.defaults) for one in params]
    if len({spec.n for spec in specs}) > 1:
        raise BadRequest("all prompts of a batch need the same n", param="n")
    service.check_fan_out(count, specs[0].n)
    rids, logprobs = _rids(body, count), _logprobs(service, body, count)
    salts = _per_prompt(body.cache_salt, count, "cache_salt")
    extras = _per_prompt(body.extra_key, count, "extra_key")
    calls = [
        GenerateCall(
            sampling=specs[k],
            text=prompt if isinstance(prompt, str) else None,
            input_ids=None if isinstance(prompt, str) else prompt,
            logprobs=logprobs[k],
            namespace=service.namespaces.of(salts[k], extras[k]),
            priority=check_priority(body.priority),
            share=caller().share,
            timeout_s=caller().timeout_s,
            stream=bool(body.stream),
            rid=rids[k],
            boundaries=boundaries,
        )
        for k, prompt in enumerate(prompts)
    ]
    if not service.trusted:
        _check_output_logprobs(calls, context_tokens=service.context_tokens)
    return NativePlan(
        calls=calls,
        ids=[name for call in calls for name in _answer_ids(call)],
        rid=body.rid if isinstance(body.rid, str) else None,
        single=not batch and specs[0].n == 1,
        text_in_logprobs=bool(body.return_text_in_logprobs),
        started_s=time.monotonic(),
    )


def _logprobs(service: Service, body: GenerateBody, count: int) -> list[Logprobs | None]:
    wanted = _per_prompt(body.return_logprob, count, "return_logprob")
    starts = _per_prompt(body.logprob_start_len, count, "logprob_start_len")
    tops = _per_prompt(body.top_logprobs_num, count, "top_logprobs_num")
    picked = _picked(body.token_ids_logprob, count)
    return [
        _logprobs_of(service, starts[k], tops[k], picked[k]) if wanted[k] else None
        for k in range(count)
    ]


def _logprobs_of(
    service: Service, start: int | None, top: int | None, picked: list[int] | None
) -> Logprobs:
    start = -1 if start is None else start
    if not -1 <= start <= NO_PROMPT_LOGPROBS:
        raise BadSampling("logprob_start_len", "-1 or a prompt position", start)
    top = top or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        expected = f"between 0 and {MAX_TOP_LOGPROBS}"
        raise BadSampling("top_logprobs_num", expected, top)
    if picked is not None:
        if len(picked) > MAX_TOKEN_IDS_LOGPROB:
            expected = f"at most {MAX_TOKEN_IDS_LOGPROB} ids"
            raise BadSampling("token_ids_logprob", expected, f"{len(picked)} ids")
        service.check_token_ids(picked, param="token_ids_logprob")
    return Logprobs(NO_PROMPT_LOGPROBS if start < 0 else start, top, tuple(picked or ()))


def _check_output_logprobs(calls: Sequence[GenerateCall], *, context_tokens: int) -> None:
    """Raise BadRequest where the answers could become too long for all that is asked of a token.

    Where it is the token's own log-probability alone, that costs little more than its id.
    """
    total = 0
    for call in calls:
        asked = call.logprobs
        if asked is None or not (asked.top or asked.token_ids):
            continue
        each = 1 + asked.top + len(asked.token_ids)
        count = each * _most_new_tokens(call.sampling, context_tokens)
        total += count * call.sampling.n
        if call.stream and count > MAX_STREAMED_OUTPUT_LOGPROBS:
            raise _too_many(
                f"each chunk of a stream would repeat up to {count} log-probabilities of the "
                f"output, the most is {MAX_STREAMED_OUTPUT_LOGPROBS}: ask without stream, or"
            )
    if total > MAX_OUTPUT_LOGPROBS:
        raise _too_many(
            f"the output could have {total} log-probabilities, a request has at most "
            f"{MAX_OUTPUT_LOGPROBS} in all: ask"
        )


def _too_many(told: str) -> BadRequest:
    text = f"{told} for fewer of each token, or with a smaller max_new_tokens"
    return BadRequest(text, param="top_logprobs_num")


def _most_new_tokens(spec: SamplingSpec, context_tokens: int) -> int:
    """Return how long an answer may become."""
    most = spec.max_new_tokens
    if most is None and spec.default_new_tokens is not None:
        most = max(spec.default_new_tokens, spec.min_new_tokens)
    return context_tokens if most is None else min(most, context_tokens)


def _prompts(
    service: Service, body: GenerateBody
) -> tuple[list[str] | list[npt.NDArray[np.int64]], bool]:
    """Return the prompts, and whether they came as a batch."""
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest("give either text or input_ids", param="text")
    if body.text is not None:
        return ([body.text], False) if isinstance(body.text, str) else (list(body.text), True)
    assert body.input_ids is not None
    return id_arrays(body.input_ids, param="input_ids", check=service.refuse_long)


def has_many_ids(prompt: Sequence[object]) -> bool:
    """Return whether making arrays of a prompt's ids, or of those of a batch, is for a thread."""
    if not prompt or not isinstance(prompt[0], list):
        return len(prompt) > IDS_AT_ONCE
    lists = (cast(list[object], one) for one in prompt if isinstance(one, list))
    return sum(map(len, lists)) > IDS_AT_ONCE


def id_arrays(
    ids: Sequence[int | list[int]],
    *,
    param: str,
    check: Callable[[Sequence[object]], None] | None = None,
) -> tuple[list[npt.NDArray[np.int64]], bool]:
    """Return one list of ids, or a batch of them, as (arrays, came as a batch).

    check  may refuse a list before it is looked at
    Raises BadRequest for a mixture, and for ids beyond 64 bits, and what `check` raises.
    """
    batch = bool(ids) and isinstance(ids[0], list)
    lists = ids if batch else [ids]
    try:
        if check is not None:
            for one in cast(Any, lists):
                check(one)
        # Of a mixture one side or the other has something that is no number or no list.
        return [np.fromiter(one, np.int64, len(one)) for one in cast(Any, lists)], batch
    except TypeError:
        raise BadRequest(f"{param} mixes ids and lists of ids", param=param) from None
    except OverflowError:
        raise BadRequest(f"{param} has ids that no vocabulary has", param=param) from None


def _per_prompt(value: Any, count: int, name: str) -> list[Any]:
    """Return one value per prompt: the entries of a list, or the same value for all."""
    if not isinstance(value, list):
        return [value] * count
    values = cast(list[Any], value)
    if len(values) != count:
        raise BadRequest(f"{name} has {len(values)} entries for {count} prompts", param=name)
    return values


def _picked(value: list[int | list[int]] | None, count: int) -> list[list[int] | None]:
    if not value:
        return [None] * count
    arrays, batch = id_arrays(value, param="token_ids_logprob")
    lists = [array.tolist() for array in arrays]
    return _per_prompt(lists if batch else lists * count, count, "token_ids_logprob")


def _rids(body: GenerateBody, count: int) -> list[str | None]:
    if isinstance(body.rid, list):
        return [labels(rid, 1)[0] for rid in _per_prompt(body.rid, count, "rid")]
    return labels(body.rid, count)


def _answer_ids(call: GenerateCall) -> list[str]:
    name = call.rid or uuid.uuid4().hex
    count = call.sampling.n
    return [name] if count == 1 else [f"{name}_{k}" for k in range(count)]
