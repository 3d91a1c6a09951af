"""What a server replied to one case, and what that is worth."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from tests.evaluate.case import Case
from tests.train.dialogue import Call, Reply

_BY_ITSELF = ("stop", "tool_calls")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a server told of one token of an answer.

    logprob    of the token, before any grammar
    likeliest  log-probabilities of the likeliest tokens; the token itself may be among them
    """

    token: str
    logprob: float
    likeliest: Mapping[str, float]

    def rivals(self) -> list[str]:
        """Return the likeliest tokens but this one."""
        return [token for token in self.likeliest if token != self.token]


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion, read.

    invalid_calls  calls that the server could not hand to a tool
    token_ids      of the whole answer, its end included where the server tells it
    choices        one for each of them, none where log-probabilities were not asked for
    """

    reply: Reply
    finish: str
    invalid_calls: int
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good an answer is.

    right    it passes its check
    stopped  it ended by itself
    valid    it has the form that was asked for, JSON or calls of offered tools; None: none was
    """

    right: bool
    stopped: bool
    valid: bool | None


def read_answer(completion: Mapping[str, Any]) -> Answer:
    """Return the first choice of a `/v1/chat/completions` reply.

    A call whose arguments are no JSON object counts as invalid, as those do that the server found
    to be so.
    """
    choice = completion["choices"][0]
    message, usage = choice["message"], completion["usage"]
    told: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    calls = [_call(call["function"]) for call in told]
    good = tuple(call for call in calls if call is not None)
    broken = len(message.get("invalid_tool_calls") or ()) + len(calls) - len(good)
    return Answer(
        reply=Reply(message.get("content") or "", good),
        finish=choice["finish_reason"],
        invalid_calls=broken,
        token_ids=tuple(choice.get("token_ids") or ()),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        choices=_choices(choice.get("logprobs") or {}),
    )


def judge(case: Case, answer: Answer) -> Verdict:
    """Judge an answer by its case's check."""
    return Verdict(
        right=not answer.invalid_calls and case.check.passes(answer.reply),
        stopped=answer.finish in _BY_ITSELF,
        valid=_has_form(case, answer),
    )


def _choices(logprobs: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the choices of a chat's `logprobs`."""
    return tuple(
        Choice(
            token=entry["token"],
            logprob=entry["logprob"],
            likeliest={one["token"]: one["logprob"] for one in entry["top_logprobs"]},
        )
        for entry in logprobs.get("content") or ()
    )


def _has_form(case: Case, answer: Answer) -> bool | None:
    check = case.check
    if check.rule == "json":
        return _fits(answer.reply.content, case.dialogue.response_format)
    if check.rule == "call" and check.calls:
        calls = answer.reply.calls
        offered = {tool["name"]: tool["parameters"] for tool in case.dialogue.tools}
        fits = all(
            call.name in offered and _is_valid(call.arguments, offered[call.name]) for call in calls
        )
        return bool(calls) and not answer.invalid_calls and fits
    return None


def _fits(text: str, response_format: Mapping[str, Any] | None) -> bool:
    """Say whether a text is JSON, and of the schema if the request had one."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return response_format is None or _is_valid(value, response_format["json_schema"]["schema"])


def _is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def _call(function: Mapping[str, Any]) -> Call | None:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return None
    return Call(function["name"], arguments) if isinstance(arguments, dict) else None
