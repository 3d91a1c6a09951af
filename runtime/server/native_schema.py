"""The body of the native `/generate`, as SGLang's clients send it."""

from typing import Annotated, Any, ClassVar

import msgspec

from runtime.errors import BadSampling
from runtime.sampling import SamplingSpec
from runtime.server.field_hints import FieldHints, HintedBody
from runtime.server.fields import called_here
from runtime.server.grammars import asked_grammar
from runtime.server.known_elsewhere import GENERATE, SAMPLING
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults
from runtime.server.structured_outputs import StructuredOutputs

DEFAULT_NEW_TOKENS = 128
# As a key, a number is checked before it is hashed: multiples of 2**61 - 1 all hash alike, and a
# dict of many of them takes seconds to make.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]

# SGLang's, which its clients send as null, too.
_UNSUPPORTED = ("stop_regex", "custom_params", "stream_interval", "beam_width")


class SampledBody(HintedBody, frozen=True, kw_only=True):
    """What `sampling_params` and OpenAI's bodies call alike."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[TokenId, float] | None = None
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

    def make_spec(
        self,
        vocab_size: int,
        defaults: SamplingDefaults,
        *,
        response_format: dict[str, Any] | None = None,
        structured_outputs: StructuredOutputs | None = None,
        **others: Any,
    ) -> SamplingSpec:
        """Return a checked spec of what is not None, of the rest as `defaults` say.

        others  fields of a spec that bodies call by other names
        Raises BadSampling, BadRequest.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in _OF_SPECS} | others
        fields["grammar"] = asked_grammar(
            response_format=response_format,
            json_schema=self.json_schema,
            regex=self.regex,
            ebnf=self.ebnf,
            structural_tag=self.structural_tag,
            structured_outputs=structured_outputs,
        )
        said = {name: value for name, value in fields.items() if value is not None}
        for name in {"stop", "stop_token_ids"} & said.keys():
            said[name] = (said[name],) if isinstance(said[name], str) else tuple(said[name])
        spec = SamplingSpec(**{**defaults, **said})
        spec.validate(vocab_size=vocab_size)
        return spec


_OF_SPECS = tuple(name for name in SampledBody.__struct_fields__ if name in SamplingSpec.__slots__)


class SamplingParams(SampledBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params` of one prompt; null means the default.

    Unlike in other bodies a name that is not here is refused, as SGLang does: most are misspelt.
    """

    elsewhere: ClassVar[FieldHints] = SAMPLING

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    stop_regex: Any = None
    custom_params: Any = None
    stream_interval: Any = None
    beam_width: Any = None

    def spec(self, *, vocab_size: int, defaults: SamplingDefaults = OPENAIS) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        for name in _UNSUPPORTED:
            self.elsewhere.refuse(name, getattr(self, name))
        seed_name = "seed" if self.sampling_seed is None else "sampling_seed"
        with called_here({"seed": seed_name}):
            return self.make_spec(
                vocab_size,
                defaults,
                max_new_tokens=self.max_new_tokens,
                default_new_tokens=DEFAULT_NEW_TOKENS,
                min_new_tokens=self.min_new_tokens,
                seed=getattr(self, seed_name),
            )


class GenerateBody(HintedBody, frozen=True):
    """`/generate`: one prompt or a batch; lists give one value per prompt."""

    elsewhere: ClassVar[FieldHints] = GENERATE

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


def check_priority(priority: int | None) -> int:
    """Return the priority, 0 by default. Raises BadSampling beyond 16 bits."""
    if priority is None:
        return 0
    if not -(1 << 15) <= priority < 1 << 15:
        raise BadSampling("priority", "between -32768 and 32767", priority)
    return priority
