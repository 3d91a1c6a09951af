"""The body of the native `/generate`, as SGLang's clients send it."""

from typing import Annotated, Any

import msgspec

from runtime.errors import BadRequest, BadSampling
from runtime.sampling import SamplingSpec
from runtime.server.field_hints import field_hint
from runtime.server.grammars import asked_grammar
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults

DEFAULT_NEW_TOKENS = 128
# As a key, a number is checked before it is hashed: multiples of 2**61 - 1 all hash alike, and a
# dict of many of them takes seconds to make.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]

_UNSUPPORTED_SAMPLING = ("stop_regex", "custom_params")
_UNSUPPORTED = (
    "input_embeds", "image_data", "audio_data", "video_data", "lora_path", "session_params",
    "custom_logit_processor", "return_hidden_states", "return_routed_experts",
    "return_prompt_token_ids", "bootstrap_host", "bootstrap_room",
)  # fmt: skip


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sampling_params` of one prompt; null means the default.

    Unlike in other bodies a name that is not here is refused, as SGLang does: most are misspelt.
    """

    n: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[TokenId, float] | None = None
    sampling_seed: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    stop_regex: Any = None
    custom_params: Any = None

    def spec(self, *, vocab_size: int, defaults: SamplingDefaults = OPENAIS) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        refuse_unsupported(self, _UNSUPPORTED_SAMPLING)
        seed = self.seed if self.sampling_seed is None else self.sampling_seed
        return make_spec(
            vocab_size,
            defaults,
            n=self.n,
            max_new_tokens=self.max_new_tokens,
            default_new_tokens=DEFAULT_NEW_TOKENS,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            seed=seed,
            stop=stop_strings(self.stop),
            stop_token_ids=None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            no_stop_trim=self.no_stop_trim,
            grammar=asked_grammar(
                json_schema=self.json_schema,
                regex=self.regex,
                ebnf=self.ebnf,
                structural_tag=self.structural_tag,
            ),
        )


class GenerateBody(msgspec.Struct, frozen=True):
    """`/generate`: one prompt or a batch; lists give one value per prompt."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    lora_path: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_prompt_token_ids: Any = None
    bootstrap_host: Any = None
    bootstrap_room: Any = None

    def refuse_unsupported(self) -> None:
        """Raise BadRequest for a field that would change the answer and is not supported."""
        refuse_unsupported(self, _UNSUPPORTED)


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...] | None:
    """Return `stop` as the tuple a spec holds."""
    if stop is None:
        return None
    return (stop,) if isinstance(stop, str) else tuple(stop)


def make_spec(vocab_size: int, defaults: SamplingDefaults, **fields: Any) -> SamplingSpec:
    """Return a checked spec of the fields that are not None, the others as `defaults` say.

    Raises BadSampling.
    """
    said = {name: value for name, value in fields.items() if value is not None}
    spec = SamplingSpec(**{**defaults, **said})
    spec.validate(vocab_size=vocab_size)
    return spec


def refuse_unsupported(body: msgspec.Struct, names: tuple[str, ...]) -> None:
    """Raise BadRequest for the first of these fields that asks for something."""
    for name in names:
        if getattr(body, name):
            text = f"{name} is not supported{field_hint(name)}"
            raise BadRequest(text, param=name, code="not_supported")


def check_priority(priority: int | None) -> int:
    """Return the priority, 0 by default. Raises BadSampling beyond 16 bits."""
    if priority is None:
        return 0
    if not -(1 << 15) <= priority < 1 << 15:
        raise BadSampling("priority", "between -32768 and 32767", priority)
    return priority
