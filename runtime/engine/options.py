"""What an engine is started with and asked for, as keyword arguments."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from runtime.config import ServerConfig, check
from runtime.errors import BadRequest, ConfigError
from runtime.flag_hints import find
from runtime.server.fields import as_body
from runtime.server.native_schema import SamplingParams as Sampling
from runtime.server.prompt import PromptedBody
from runtime.server.score import ScoreBody

# An engine listens nowhere; how long it drains is for `shutdown` to say.
_OF_SERVERS = frozenset(
    {
        *("host", "port", "api_key", "api_key_file", "insecure", "profile_dir", "drain_timeout"),
        *("log_level_http", "uvicorn_access_log_exclude_prefixes", "otlp_traces_endpoint"),
    }
)
# It is a guest in somebody's program: on stderr it says what is wrong, not what it does.
_DEFAULTS = {"log_level": "warning"}

Texts = str | Sequence[str]
Ids = Sequence[int] | Sequence[Sequence[int]]
SamplingParams = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class GenerateOptions(TypedDict, total=False):
    """What `/generate` takes besides prompts and sampling; a list has one for each prompt."""

    return_logprob: bool | list[bool] | None
    logprob_start_len: int | list[int] | None
    top_logprobs_num: int | list[int] | None
    token_ids_logprob: list[int] | list[list[int]] | None
    return_text_in_logprobs: bool | None
    rid: str | list[str] | None
    priority: int | None
    cache_salt: str | list[str] | None
    extra_key: str | list[str] | None
    prompt_parts: Mapping[str, Any] | None


class ScoreOptions(TypedDict, total=False):
    """What `/score` takes besides its prompt and its choices."""

    prompt_parts: Mapping[str, Any] | None
    unconditional: bool | None
    priority: int | None
    cache_salt: str | None
    extra_key: str | None


def engine_config(config: ServerConfig | None, flags: Mapping[str, Any]) -> ServerConfig:
    """Return `config`, or the defaults of an engine, with `flags` in their places.

    Flags of other servers are answered as on the command line: see `runtime.flag_hints`. Raises
    ConfigError for a flag that is none, or is a server's, and for values that do not fit.
    """
    fields = {item.name: item.metadata["aliases"] for item in dataclasses.fields(ServerConfig)}
    aliases = {_spelled(alias): name for name, more in fields.items() for alias in more}
    ours: dict[str, Any] = {}
    for flag, value in flags.items():
        name = aliases.get(flag, flag)
        if name in _OF_SERVERS:
            raise ConfigError(f"{name} is for servers: an engine listens nowhere")
        if name in fields:
            ours[name] = value
        elif not _is_so_anyway(name, value):
            near = difflib.get_close_matches(name, fields.keys() - _OF_SERVERS, n=1)
            raise ConfigError(f"there is no flag {name}" + "".join(f": {n}?" for n in near))
    given = _DEFAULTS if config is None else dataclasses.asdict(config)
    try:
        made = msgspec.convert({**given, **ours}, ServerConfig)
    except msgspec.ValidationError as fault:
        raise ConfigError(str(fault)) from fault
    check(made)
    return made


def _spelled(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _is_so_anyway(name: str, value: object) -> bool:
    """Whether a flag of another server asks for nothing else than what is.

    Raises ConfigError where it asks for more, with the hint on it.
    """
    hint = find(f"--{name}")
    if hint is None:
        return False
    if value in (None, False) or ("" if value is True else str(value)) in hint.same:
        return True
    raise ConfigError(f"{name}={value!r} is not a flag here: {hint.text}")


def prompted(
    prompt: Texts | None,
    sampling_params: SamplingParams | None,
    input_ids: Ids | None,
    *,
    stream: bool,
    n: int | None,
    **options: Unpack[GenerateOptions],
) -> PromptedBody:
    """Return the arguments of `Engine.generate` as a body. Raises BadRequest, TypeError."""
    fields = {
        "text": prompt,
        "sampling_params": sampling_params,
        "input_ids": input_ids,
        "stream": stream,
    }
    body = as_body({**fields, **options}, PromptedBody)
    return body if n is None else _with_n(body, n)


def scored(
    prompt: str | None,
    choices: Sequence[str | Sequence[int]],
    input_ids: Sequence[int] | None,
    options: ScoreOptions,
) -> ScoreBody:
    """Return the arguments of `Engine.score` as a body. Raises BadRequest, TypeError."""
    fields = {"text": prompt, "choices": choices, "input_ids": input_ids}
    return as_body({**fields, **options}, ScoreBody)


def _with_n(body: PromptedBody, n: int) -> PromptedBody:
    n = as_body({"n": n}, Sampling).n or 1
    params = body.sampling_params
    many = params if isinstance(params, list) else [params or Sampling()]
    if any(each.n not in (None, n) for each in many):
        raise BadRequest("n is given twice", param="n")
    asked = [msgspec.structs.replace(each, n=n) for each in many]
    whole = asked if isinstance(params, list) else asked[0]
    return msgspec.structs.replace(body, sampling_params=whole)
