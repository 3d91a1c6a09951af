"""How one generation is sampled, as a program says it; what is not said is left to the backend."""

from dataclasses import dataclass, fields
from typing import Any, cast

# Names of `/generate` where they differ from the language's.
_NATIVE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
# These travel beside the sampling parameters, not among them.
REPORTING = frozenset(
    {"return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"}
)

_INTEGERS = frozenset(
    {"max_tokens", "min_tokens", "n", "top_k", "seed", "logprob_start_len", "top_logprobs_num"}
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; None means not said.

    max_tokens, min_tokens   new tokens
    regex, json_schema       what the text must be; the backend may refuse them
    return_logprob ...       what `get_meta_info` is to tell besides
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: str | tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Sampling":
        """Return the sampling that keyword arguments ask for; lists are copied.

        `max_new_tokens` and `min_new_tokens` are taken as other names of two of them.
        A whole number such as -1.0 is taken where an integer is meant.
        Raises TypeError for a name that is none.
        """
        languages = {native: name for name, native in _NATIVE_NAMES.items()}
        named = {languages.get(name, name): value for name, value in said.items()}
        values: dict[str, Any] = {name: _frozen(name, value) for name, value in named.items()}
        return cls(**values)

    def over(self, default: "Sampling") -> "Sampling":
        """Return this sampling with the gaps filled from `default`."""
        values: dict[str, Any] = {}
        for name in FIELDS:
            mine = getattr(self, name)
            values[name] = getattr(default, name) if mine is None else mine
        return Sampling(**values)

    def said(self) -> dict[str, Any]:
        """Return what was said, by name, without the reporting fields."""
        pairs = ((name, getattr(self, name)) for name in FIELDS if name not in REPORTING)
        return {name: value for name, value in pairs if value is not None}

    def native(self) -> dict[str, Any]:
        """Return the `sampling_params` of `/generate`."""
        return {_NATIVE_NAMES.get(name, name): value for name, value in self.said().items()}

    def reporting(self) -> dict[str, Any]:
        """Return what `/generate` takes beside `sampling_params`."""
        pairs = ((name, getattr(self, name)) for name in FIELDS if name in REPORTING)
        return {name: value for name, value in pairs if value is not None}


def _frozen(name: str, value: Any) -> Any:
    if name in _INTEGERS and isinstance(value, float) and value.is_integer():
        return int(value)
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value


FIELDS = tuple(item.name for item in fields(Sampling))
ACCEPTED = frozenset({*FIELDS, *_NATIVE_NAMES.values()})
