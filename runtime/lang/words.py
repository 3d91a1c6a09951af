"""The words of the language: what a program's function says to its state."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from runtime.errors import BadRequest
from runtime.lang.choices import ChoicesMethod, token_length_normalized
from runtime.lang.failures import label
from runtime.lang.ir import (
    REGEX_BOOL,
    REGEX_FLOAT,
    REGEX_INT,
    REGEX_STR,
    Begin,
    End,
    Expr,
    Gen,
    Said,
    Select,
    as_expr,
)
from runtime.lang.sampling import FIELDS, Sampling

# A number ends before the blank that follows it.
_PATTERNS: dict[str, str] = {
    "int": REGEX_INT,
    "float": REGEX_FLOAT,
    "str": REGEX_STR,
    "bool": REGEX_BOOL,
}
_NUMBERS = ("int", "float")
_NUMBER_STOPS = (" ", "\n")


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: float | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: str | dict[str, Any] | None = None,
    **others: Any,
) -> Expr:
    """Let the model write; with `choices`, let it choose. README.md says what each parameter is.

    The order of the parameters is that of SGLang.

    name      the variable that keeps the text
    choices   see `select`; they are a form already, and no temperature goes with them
    dtype     int, float, str or bool, or its name: the text has that form
    others    further fields of `Sampling`: repetition_penalty, seed, max_new_tokens ...
    Raises TypeError for an unknown field, ValueError for a regex that is none, an unknown dtype,
    no choices, or a form said twice.
    """
    own = dict(locals())
    said = {field: own[field] for field in FIELDS if own.get(field) is not None} | others
    if isinstance(schema := said.get("json_schema"), dict):
        said["json_schema"] = json.dumps(schema)
    wish = Sampling.of(said)
    if choices is None:
        return _written(name, wish, dtype)
    if any(form is not None for form in (dtype, wish.regex, wish.json_schema)):
        raise ValueError("choices say the form already: leave out dtype, regex and json_schema")
    method = choices_method or token_length_normalized
    return select(name, choices, wish.temperature or 0.0, method)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **others: Any,
) -> Expr:
    """Let the model write a whole number; see `gen`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **others)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **others: Any,
) -> Expr:
    """Let the model write a quoted string; see `gen`."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **others)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Expr:
    """Say the likeliest of `choices`, scored in one round trip.

    Raises ValueError for no choices, an empty one, or a temperature: choosing is not sampling.
    """
    if not choices or not all(choices):
        what = "an empty text is among them" if choices else "there are none"
        raise ValueError(f"{label('select', name)} needs choices that are not empty: {what}")
    if temperature > 1e-5:
        raise ValueError("select takes the likeliest choice: the temperature must be 0")
    return Select(name, tuple(choices), choices_method)


def system(said: Said = None) -> Expr:
    """Say a system message."""
    return _turn("system", said)


def user(said: Said = None) -> Expr:
    """Say a user's message."""
    return _turn("user", said)


def assistant(said: Said = None) -> Expr:
    """Say an assistant's message, in which the model may write."""
    return _turn("assistant", said)


def system_begin() -> Expr:
    """Open a system message."""
    return Begin("system")


def system_end() -> Expr:
    """Close a system message."""
    return End("system")


def user_begin() -> Expr:
    """Open a user's message."""
    return Begin("user")


def user_end() -> Expr:
    """Close a user's message."""
    return End("user")


def assistant_begin() -> Expr:
    """Open an assistant's message."""
    return Begin("assistant")


def assistant_end() -> Expr:
    """Close an assistant's message."""
    return End("assistant")


def image(*_: Any, **__: Any) -> NoReturn:
    """Refuse an image. Raises BadRequest: the models served read text only."""
    raise BadRequest("images are not supported: the model reads text only", code="not_supported")


def video(*_: Any, **__: Any) -> NoReturn:
    """Refuse a video. Raises BadRequest: the models served read text only."""
    raise BadRequest("videos are not supported: the model reads text only", code="not_supported")


def _turn(role: str, said: Said) -> Expr:
    return Begin(role) + as_expr(said) + End(role)


def _written(name: str | None, wish: Sampling, dtype: type | str | None) -> Gen:
    if dtype is not None:
        wish = _typed(dtype, wish)
    if wish.regex is not None:
        try:
            re.compile(wish.regex)
        except re.error as fault:
            raise ValueError(f"regex {wish.regex!r} is not valid: {fault}") from fault
    return Gen(name, wish)


def _typed(dtype: type | str, wish: Sampling) -> Sampling:
    kind = dtype if isinstance(dtype, str) else dtype.__name__
    if kind not in _PATTERNS:
        raise ValueError(f"dtype must be one of {', '.join(_PATTERNS)}, not {kind!r}")
    if wish.regex is not None or wish.json_schema is not None:
        raise ValueError("dtype says the form already: leave out regex and json_schema")
    stop = (wish.stop,) if isinstance(wish.stop, str) else wish.stop or ()
    more = _NUMBER_STOPS if kind in _NUMBERS else ()
    return replace(wish, regex=_PATTERNS[kind], stop=(*stop, *more) or None)
