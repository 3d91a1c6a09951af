"""The body of `/v1/responses`: OpenAI's newer requests as chats."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, cast

import msgspec

from runtime.errors import BadRequest
from runtime.server.chat_schema import EXTENSIONS, ChatBody
from runtime.server.field_hints import FieldHints, HintedBody
from runtime.server.fields import called_here
from runtime.server.known_elsewhere import RESPONSES
from runtime.server.native_schema import TokenId
from runtime.server.responses_items import Item
from runtime.server.responses_tools import ResponseTool, chat_tools, full_name, offered
from runtime.server.responses_turns import chat_messages

_SAMPLING = ("model", "temperature", "top_p", "top_k", "top_logprobs", "stream", *EXTENSIONS)
FORMAT = "text.format"
# Fields of a chat -> those that they come from.
_NAMES = {
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": FORMAT,
}
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
# The others add to items that never occur here.
_INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_FORMATS = ("text", "json_object", "json_schema")
# Source: OpenAI's API reference, `metadata`.
_METADATA_ENTRIES, _METADATA_NAME, _METADATA_VALUE = 16, 64, 512


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` that names the tool to call."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    def in_chat(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        return {"type": self.type, self.type: {"name": full_name(self.namespace, self.name)}}


class AllowedTools(msgspec.Struct, frozen=True):
    """A `tool_choice` that leaves some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text.format`: what the answer's text has to be."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Any = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    """`reasoning`."""

    effort: str | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class ResponsesBody(HintedBody, frozen=True, kw_only=True):
    """`/v1/responses`; the fields after `metadata` are extensions."""

    elsewhere: ClassVar[FieldHints] = RESPONSES

    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    top_k: int | None = None
    seed: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[TokenId, float] | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | None = None

    @property
    def items(self) -> list[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [Item(type="message", role="user", content=self.input)]
        return self.input

    @property
    def offered(self) -> list[ResponseTool]:
        """The tools that the model can call. Raises BadRequest."""
        return offered(self.tools or (), self.tool_choice)

    def includes(self, name: str) -> bool:
        """Say whether the reply is to have an optional part."""
        return name in (self.include or ())

    def chat(self, items: Sequence[Item]) -> ChatBody:
        """Return this request as a chat, whose conversation is `items`. Raises BadRequest."""
        self._check()
        shared = {name: getattr(self, name) for name in _SAMPLING}
        return ChatBody(
            messages=chat_messages(self.instructions, items),
            tools=chat_tools(self.offered) or None,
            tool_choice=self._tool_choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            response_format=self._response_format(),
            max_tokens=self.max_output_tokens,
            logprobs=self.includes(LOGPROBS) or None,
            **shared,
        )

    def _check(self) -> None:
        for name in self.include or ():
            if name not in _INCLUDABLE:
                text = f"include: {name[:80]!r} is none of {', '.join(_INCLUDABLE)}"
                raise BadRequest(text, param="include")
        if self.top_logprobs and not self.includes(LOGPROBS):
            text = f'top_logprobs needs include: ["{LOGPROBS}"]'
            raise BadRequest(text, param="top_logprobs")
        for name in ("summary", "generate_summary", "context", "mode"):
            self.elsewhere.refuse(f"reasoning.{name}", getattr(self.reasoning, name, None))
        self.elsewhere.refuse("text.verbosity", getattr(self.text, "verbosity", None))
        entries = self.metadata or {}
        sizes = (len(entries), *(max(map(len, part), default=0) for part in _sides(entries)))
        limits = (_METADATA_ENTRIES, _METADATA_NAME, _METADATA_VALUE)
        if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
            text = "metadata has at most {} entries, of {} characters and {} in the value"
            raise BadRequest(text.format(*limits), param="metadata")

    def _tool_choice(self) -> Any:
        choice = self.tool_choice
        if choice is None or choice in ("none", "auto", "required"):
            return choice
        kind = cast(dict[str, Any], choice).get("type") if isinstance(choice, dict) else choice
        try:
            if kind == "allowed_tools":
                allowed = msgspec.convert(choice, AllowedTools)
                tools = [tool.in_chat() for tool in allowed.tools]
                return {"type": kind, kind: {"mode": allowed.mode, "tools": tools}}
            return msgspec.convert(choice, NamedTool).in_chat()
        except msgspec.ValidationError as fault:
            text = "tool_choice must be none, auto, required, name a function or a custom tool, or "
            text += f"be allowed_tools, got {str(kind)[:80]!r}: {fault}"
            raise BadRequest(text, param="tool_choice") from fault

    def _response_format(self) -> dict[str, Any] | None:
        form = None if self.text is None else self.text.format
        if form is None:
            return None
        if form.type not in _FORMATS:
            text = f"{FORMAT}.type must be one of {', '.join(_FORMATS)}, got {form.type[:80]!r}"
            raise BadRequest(text, param=FORMAT)
        if form.type != "json_schema":
            return {"type": form.type}
        if form.schema is None:
            raise BadRequest(f"{FORMAT}.schema is missing", param=FORMAT)
        named = {"name": form.name or "answer", "schema": form.schema}
        return {"type": "json_schema", "json_schema": named}


def _sides(entries: dict[str, str]) -> tuple[list[str], list[str]]:
    return list(entries), list(entries.values())


@contextmanager
def in_responses() -> Iterator[None]:
    """Let refusals of the chat that a request becomes name the fields of `/v1/responses`."""
    try:
        with called_here(_NAMES):
            yield
    except BadRequest as fault:
        if fault.param == "messages":
            fault.param = "input"
        elif fault.param in _NAMES:
            fault.message = fault.message.replace(fault.param, _NAMES[fault.param], 1)
            fault.param = _NAMES[fault.param]
        raise
