"""The body of `/v1/completions`, and what it shares with chat."""

from typing import Any, ClassVar

import msgspec

from runtime.errors import BadRequest, BadSampling
from runtime.sampling import SamplingSpec
from runtime.server.field_hints import FieldHints
from runtime.server.fields import called_here
from runtime.server.known_elsewhere import COMPLETION
from runtime.server.native_schema import SampledBody
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults
from runtime.server.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(SampledBody, frozen=True, kw_only=True):
    """What both endpoints take; fields that OpenAI's API does not have are extensions."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    min_tokens: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | None = None
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    best_of: int | None = None

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
        self, vocab_size: int, defaults: SamplingDefaults, *, default_tokens: int | None
    ) -> SamplingSpec:
        """Return the checked sampling; of two limits of the length the newer name counts.

        Raises BadSampling, BadRequest.
        """
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise BadRequest("best_of other than n is not supported: use n", param="best_of")
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        with called_here({"max_new_tokens": limit, "min_new_tokens": "min_tokens"}):
            return self.make_spec(
                vocab_size,
                defaults,
                max_new_tokens=getattr(self, limit),
                default_new_tokens=default_tokens,
                min_new_tokens=self.min_tokens,
                response_format=self.response_format,
                structured_outputs=self.structured_outputs,
            )


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """`/v1/completions`."""

    elsewhere: ClassVar[FieldHints] = COMPLETION

    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None

    def spec(self, *, vocab_size: int, defaults: SamplingDefaults = OPENAIS) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        check_top(self.logprobs, "logprobs")
        return self.common_spec(vocab_size, defaults, default_tokens=DEFAULT_COMPLETION_TOKENS)


def check_top(count: int | None, name: str) -> None:
    """Raise BadSampling unless `count` alternatives can be reported."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise BadSampling(name, f"between 0 and {MAX_LOGPROBS}", count)
