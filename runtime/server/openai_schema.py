"""The body of `/v1/completions`, what it shares with chat, and what of both we refuse.

Fields that are not here are ignored, as OpenAI-compatible servers do; a field that would change
the answer and is not supported is here, to be refused.
"""

from typing import Any

import msgspec

from runtime.errors import BadRequest, BadSampling
from runtime.sampling import SamplingSpec
from runtime.server.field_hints import field_hint
from runtime.server.fields import called_here
from runtime.server.native_schema import SampledBody, refuse_unsupported
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults

MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16

_UNSUPPORTED = (
    "stop_regex", "use_beam_search", "logits_processors", "custom_logit_processor", "lora_path",
    "session_params", "length_penalty", "bad_words", "allowed_token_ids", "prompt_logprobs",
    "truncate_prompt_tokens", "include_stop_str_in_output", "return_hidden_states",
    "kv_transfer_params", "bootstrap_host", "bootstrap_room", "custom_params",
    "return_routed_experts", "return_cached_tokens_details", "return_prompt_token_ids",
    "return_meta_info",
)  # fmt: skip
# What vLLM's clients send, and what says the same here.
_OTHER_NAMES = (
    "guided_choice", "guided_grammar", "guided_json", "guided_regex", "structured_outputs",
)  # fmt: skip
_UNSUPPORTED_COMPLETION = ("suffix", "prompt_embeds")


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(SampledBody, frozen=True, kw_only=True):
    """What both endpoints take; fields that OpenAI's API does not have are extensions."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    min_tokens: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | None = None
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    use_beam_search: Any = None
    logits_processors: Any = None
    custom_logit_processor: Any = None
    lora_path: Any = None
    session_params: Any = None
    length_penalty: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    include_stop_str_in_output: Any = None
    return_hidden_states: Any = None
    kv_transfer_params: Any = None
    bootstrap_host: Any = None
    bootstrap_room: Any = None
    return_routed_experts: Any = None
    return_cached_tokens_details: Any = None
    return_prompt_token_ids: Any = None
    return_meta_info: Any = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def common_spec(
        self,
        vocab_size: int,
        defaults: SamplingDefaults,
        *,
        max_tokens: int | None,
        default_tokens: int | None,
        limit_name: str = "max_tokens",
    ) -> SamplingSpec:
        """Return the checked sampling; `limit_name` is the field that `max_tokens` comes from.

        Raises BadSampling, BadRequest.
        """
        refuse_unsupported(self, _UNSUPPORTED)
        for name in _OTHER_NAMES:
            if getattr(self, name) is not None:
                text = f"{name} is not known here{field_hint(name)}"
                raise BadRequest(text, param=name, code="not_supported")
        with called_here({"max_new_tokens": limit_name, "min_new_tokens": "min_tokens"}):
            return self.make_spec(
                vocab_size,
                defaults,
                max_new_tokens=max_tokens,
                default_new_tokens=default_tokens,
                min_new_tokens=self.min_tokens,
                response_format=self.response_format,
            )


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: Any = None
    prompt_embeds: Any = None

    def spec(self, *, vocab_size: int, defaults: SamplingDefaults = OPENAIS) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        refuse_unsupported(self, _UNSUPPORTED_COMPLETION)
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise BadRequest("best_of other than n is not supported", param="best_of")
        check_top(self.logprobs, "logprobs")
        return self.common_spec(
            vocab_size,
            defaults,
            max_tokens=self.max_tokens,
            default_tokens=DEFAULT_COMPLETION_TOKENS,
        )


def check_top(count: int | None, name: str) -> None:
    """Raise BadSampling unless `count` alternatives can be reported."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise BadSampling(name, f"between 0 and {MAX_LOGPROBS}", count)
