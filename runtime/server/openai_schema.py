"""Bodies of `/v1/completions` and `/v1/chat/completions`, and what of them we refuse.

Fields that are not here are ignored, as OpenAI-compatible servers do; a field that would change
the answer and is not supported is here, to be refused.
"""

from typing import Any

import msgspec

from runtime.chat_template import Message
from runtime.errors import BadRequest, BadSampling
from runtime.sampling import SamplingSpec
from runtime.server.native_schema import make_spec, refuse_unsupported, stop_strings

MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16
MAX_MESSAGES = 10_000

_UNSUPPORTED = (
    "regex", "ebnf", "json_schema", "structural_tag", "structured_outputs", "stop_regex",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "use_beam_search",
    "logits_processors", "custom_logit_processor", "lora_path", "session_params",
)  # fmt: skip
_UNSUPPORTED_COMPLETION = ("suffix", "prompt_embeds")
_UNSUPPORTED_CHAT = (
    "tools", "functions", "function_call", "audio", "web_search_options", "chat_template", "task",
)  # fmt: skip
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEMPLATE_NAMES = ("enable_thinking", "thinking", "reasoning_effort")


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints take; the fields after `stream_options` are extensions."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | None = None
    response_format: dict[str, Any] | None = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    structured_outputs: Any = None
    stop_regex: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    use_beam_search: Any = None
    logits_processors: Any = None
    custom_logit_processor: Any = None
    lora_path: Any = None
    session_params: Any = None

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
        self, vocab_size: int, *, max_tokens: int | None, default_tokens: int | None
    ) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        refuse_unsupported(self, _UNSUPPORTED)
        kind = (self.response_format or {}).get("type", "text")
        if kind != "text":
            raise BadRequest(
                f"response_format {str(kind)[:80]!r} is not supported yet",
                param="response_format",
                code="not_supported",
            )
        return make_spec(
            vocab_size,
            n=self.n,
            max_new_tokens=max_tokens,
            default_new_tokens=default_tokens,
            min_new_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            stop=stop_strings(self.stop),
            stop_token_ids=None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            no_stop_trim=self.no_stop_trim,
        )


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: Any = None
    prompt_embeds: Any = None

    def spec(self, *, vocab_size: int) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        refuse_unsupported(self, _UNSUPPORTED_COMPLETION)
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise BadRequest("best_of other than n is not supported", param="best_of")
        check_top(self.logprobs, "logprobs")
        return self.common_spec(
            vocab_size, max_tokens=self.max_tokens, default_tokens=DEFAULT_COMPLETION_TOKENS
        )


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None
    prefix: bool | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """`/v1/chat/completions`, without tools."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: Any = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    tool_choice: Any = None
    tools: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    task: Any = None

    def spec(self, *, vocab_size: int) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        refuse_unsupported(self, _UNSUPPORTED_CHAT)
        if self.tool_choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice is not supported yet", param="tool_choice")
        if self.modalities not in (None, [], ["text"]):
            raise BadRequest("only the modality text is supported", param="modalities")
        check_top(self.top_logprobs, "top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        asked = self.max_completion_tokens
        asked = self.max_tokens if asked is None else asked
        return self.common_spec(vocab_size, max_tokens=asked, default_tokens=None)

    def turns(self) -> list[Message]:
        """Return the messages as plain text. Raises BadRequest for what is not."""
        if not 1 <= len(self.messages) <= MAX_MESSAGES:
            expected = f"between 1 and {MAX_MESSAGES}"
            raise BadRequest(f"the number of messages must be {expected}", param="messages")
        return [_turn(message, f"messages[{k}]") for k, message in enumerate(self.messages)]

    @property
    def continues(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return bool(self.continue_final_message or self.messages[-1].prefix)

    def variables(self) -> dict[str, Any]:
        """Return what the client tells the template besides the messages.

        Raises BadRequest for a name or a value that is none of the known few: a template must not
        be handed arbitrary data.
        """
        asked = dict(self.chat_template_kwargs or {})
        if isinstance(self.thinking, dict):
            asked["thinking"] = self.thinking.get("type") == "enabled"
        elif self.thinking is not None:
            asked["thinking"] = self.thinking
        if self.reasoning_effort is not None:
            asked["reasoning_effort"] = self.reasoning_effort
        for name, value in asked.items():
            known = name in _TEMPLATE_NAMES and isinstance(value, bool | str)
            if not known or (isinstance(value, str) and len(value) > 32):
                raise BadRequest(
                    f"{name[:80]!r} is no template argument: there are "
                    f"{', '.join(_TEMPLATE_NAMES)}, each true, false or a word",
                    param="chat_template_kwargs",
                )
        return asked


def check_top(count: int | None, name: str) -> None:
    """Raise BadSampling unless `count` alternatives can be reported."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise BadSampling(name, f"between 0 and {MAX_LOGPROBS}", "another number")


def _turn(message: ChatMessage, where: str) -> Message:
    if message.role not in _ROLES:
        raise BadRequest(
            f"{where}: role must be system, developer, user or assistant, "
            f"got {message.role[:80]!r}",
            param="messages",
        )
    if message.tool_calls or message.function_call or message.audio:
        raise BadRequest(f"{where}: tool calls and audio are not supported yet", param="messages")
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise BadRequest(f"{where}: content is missing", param="messages")
        content = ""
    if isinstance(content, list):
        for part in content:
            if part.type != "text" or part.text is None:
                raise BadRequest(
                    f"{where}: only text content is supported, got {part.type[:80]!r}",
                    param="messages",
                )
        content = "\n".join(part.text or "" for part in content)
    return Message(_ROLES[message.role], content)
