"""The body of `/v1/chat/completions`, and what of it we refuse."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from runtime.errors import BadRequest
from runtime.sampling import SamplingSpec
from runtime.server.custom_tools import CustomTool, as_arguments
from runtime.server.field_hints import FieldHints
from runtime.server.fields import refusing_depth
from runtime.server.grammars import openai_format
from runtime.server.known_elsewhere import CHAT
from runtime.server.openai_schema import CommonBody, check_top
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults
from runtime.server.tool_choice import ToolChoice, read_choice

MAX_MESSAGES = 10_000

_V4_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "latest_reminder": "latest_reminder",
}
# A template's own names, which no argument replaces.
_RESERVED = {
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token",
    "raise_exception", "strftime_now",
}  # fmt: skip
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag", "structured_outputs")
_TEMPLATE_NAMES = ("enable_thinking", "thinking", "reasoning_effort")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")

# What the other dialects take besides, under chat's names: for clients that send more than their
# APIs have.
EXTENSIONS = (
    "seed", "min_p", "min_tokens", "ignore_eos", "logit_bias", "cache_salt", "extra_key",
    "priority", "rid",
)  # fmt: skip


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """What an assistant called, and with what."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class CustomCall(msgspec.Struct, frozen=True):
    """What an assistant called that takes text."""

    name: str
    input: str


class MessageToolCall(msgspec.Struct, frozen=True):
    """One tool call of an assistant's message."""

    id: str
    function: FunctionCall | None = None
    type: Literal["function", "custom"] = "function"
    custom: CustomCall | None = None

    def __post_init__(self) -> None:
        if (self.function if self.type == "function" else self.custom) is None:
            raise ValueError(f"Object missing required field `{self.type}`")

    @property
    def called(self) -> FunctionCall:
        """The call as a function's."""
        if self.type == "custom" and self.custom is not None:
            return FunctionCall(self.custom.name, as_arguments(self.custom.input))
        assert self.function is not None, "checked when it was made"
        return self.function


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat; `reasoning` is another name for `reasoning_content`."""

    role: str
    content: str | list[ContentPart] | None = None
    prefix: bool | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    tools: Any = None


class ToolFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """One entry of `tools`."""

    function: ToolFunction | None = None
    type: Literal["function", "custom"] = "function"
    custom: CustomTool | None = None

    def __post_init__(self) -> None:
        if (self.function if self.type == "function" else self.custom) is None:
            raise ValueError(f"Object missing required field `{self.type}`")

    @property
    def called(self) -> ToolFunction:
        """The function that it is to the model. Raises BadRequest for a grammar that is none."""
        if self.type == "custom" and self.custom is not None:
            tool, where = self.custom, f"tools: {self.custom.name[:80]!r}"
            strict = tool.pattern(where) is not None or None
            return ToolFunction(tool.name, tool.description, tool.parameters(where), strict)
        assert self.function is not None, "checked when it was made"
        return self.function


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """`/v1/chat/completions`."""

    elsewhere: ClassVar[FieldHints] = CHAT

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    thinking: Any = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    modalities: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    def spec(self, *, vocab_size: int, defaults: SamplingDefaults = OPENAIS) -> SamplingSpec:
        """Return the checked sampling. Raises BadSampling, BadRequest."""
        if self.modalities not in (None, [], ["text"]):
            raise BadRequest("only the modality text is supported", param="modalities")
        check_top(self.top_logprobs, "top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        spec = self.common_spec(vocab_size, defaults, default_tokens=None)
        # A response_format holds for content, of which a forced call has none.
        name = next((n for n in _GRAMMARS if getattr(self, n) is not None), None)
        if self.forced_tools() is not None and name is not None:
            raise BadRequest(
                "a forced call follows its tool's schema, and nothing else", param=name
            )
        return spec

    def forced_tools(self) -> dict[str, Any] | None:
        """Return the parameters' schema of each tool of which one must be called; None: no must.

        Raises BadRequest for a `tool_choice` that is none, or that cannot be met.
        """
        choice = self.choice
        tools = choice.among(self.offered_tools())
        if not choice.must:
            return None
        if not tools:
            raise BadRequest("tool_choice names no tool that is there", param="tool_choice")
        return tools

    @property
    def choice(self) -> ToolChoice:
        """What `tool_choice` says. Raises BadRequest."""
        return read_choice(self.tool_choice)

    def offered_tools(self) -> dict[str, Any]:
        """Return the parameters' schema of each tool."""
        return {tool.name: tool.parameters or {} for tool in self._called()}

    def held_tools(self) -> dict[str, Any]:
        """Return the parameters' schema of each tool that may be called, None: not `strict`."""
        held = {t.name: t.parameters or {} if t.strict else None for t in self._called()}
        return self.choice.among(held)

    def holds_calls(self) -> bool:
        """Say whether calls that are free to be made are held to anything."""
        is_strict = any(schema is not None for schema in self.held_tools().values())
        return is_strict or self.choice.names is not None

    def custom_tools(self) -> frozenset[str]:
        """Return the names of the tools that take text."""
        return frozenset(t.called.name for t in self.tools or () if t.type == "custom")

    def _called(self) -> list[ToolFunction]:
        return [tool.called for tool in self.tools or ()]

    @property
    def continues(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return bool(self.continue_final_message or (self.messages and self.messages[-1].prefix))

    def conversation(self) -> dict[str, Any]:
        """Return what `V4Encoder.encode` takes. Raises BadRequest."""
        self.check_count()
        if self.documents:
            raise BadRequest("the V4 format has no documents: use a message", param="documents")
        if self.add_generation_prompt is False and not self.continues:
            raise BadRequest(
                "the V4 format always opens the assistant's turn", param="add_generation_prompt"
            )
        messages = [_v4_message(m, f"messages[{k}]") for k, m in enumerate(self.messages)]
        if self.continues:
            if messages[-1]["role"] != "assistant":
                raise BadRequest("only an assistant's message can be continued", param="messages")
            messages[-1]["prefix"] = True
        body: dict[str, Any] = {"messages": messages, **self._thinking()}
        may_call = self.tool_choice != "none"
        self.check_continued()
        if self.tools and (may_call or not self.continues):
            body["tools"] = [_v4_tool(tool) for tool in self.tools]
            # A call that must be made is forced by a grammar; the prompt is that of a free choice.
            if self.tool_choice is not None:
                self.forced_tools()
                body["tool_choice"] = "none" if self.tool_choice == "none" else "auto"
        form = openai_format(self.response_format)
        if form is not None and form.get("type") == "json_schema":
            body["response_format"] = form
        return body

    def check_continued(self) -> None:
        """Raise BadRequest where an answer whose beginning is given may call tools."""
        if self.tools and self.continues and self.tool_choice != "none":
            raise BadRequest(
                "an answer whose beginning is given cannot call tools: leave out tools, or let "
                "tool_choice be none",
                param="tools",
            )

    def variables(self, *, any_name: bool = False) -> dict[str, Any]:
        """Return what the client tells the template besides the messages.

        any_name  the template decides which names there are, and refuses the others
        Raises BadRequest for a name or a value that cannot be: templates get single words only.
        """
        asked = dict(self.chat_template_kwargs or {})
        if self.enable_thinking is not None:
            asked["enable_thinking"] = self.enable_thinking
        if isinstance(self.thinking, dict):
            kind = self.thinking.get("type")
            if kind not in ("enabled", "disabled"):
                raise BadRequest("thinking.type must be enabled or disabled", param="thinking")
            asked["thinking"] = kind == "enabled"
        elif self.thinking is not None:
            asked["thinking"] = self.thinking
        if self.reasoning_effort is not None:
            asked["reasoning_effort"] = self.reasoning_effort
        for name, value in asked.items():
            named = name in _TEMPLATE_NAMES or (any_name and name not in _RESERVED)
            known = named and isinstance(value, bool | str | (int if any_name else str))
            if not known or (isinstance(value, str) and len(value) > 32):
                raise BadRequest(
                    f"{name[:80]!r} is no template argument: there are "
                    f"{', '.join(_TEMPLATE_NAMES)}, each true, false or a word",
                    param="chat_template_kwargs",
                )
        if {True, False} <= {asked.get("thinking"), asked.get("enable_thinking")}:
            text = "thinking and enable_thinking contradict each other: give one of them"
            raise BadRequest(text, param="enable_thinking")
        return asked

    def _thinking(self) -> dict[str, Any]:
        """Return `thinking` and `reasoning_effort` for V4, each only where it was asked for.

        Thinking said aloud outranks an effort of "none".
        """
        asked = self.variables()
        said = asked.get("thinking", asked.get("enable_thinking"))
        effort = asked.get("reasoning_effort")
        if not isinstance(said, bool | None):
            raise BadRequest("thinking must be true or false", param="thinking")
        if effort is not None and effort not in _EFFORTS:
            expected = ", ".join(_EFFORTS)
            raise BadRequest(
                f"reasoning_effort must be one of {expected}", param="reasoning_effort"
            )
        if said is None and effort == "none":
            said = False
        body: dict[str, Any] = {}
        if said is not None:
            body["thinking"] = {"type": "enabled" if said else "disabled"}
        if effort not in (None, "none"):
            body["reasoning_effort"] = effort
        return body

    def check_count(self) -> None:
        """Raise BadRequest for no messages, or too many."""
        if not 1 <= len(self.messages) <= MAX_MESSAGES:
            expected = f"between 1 and {MAX_MESSAGES}"
            raise BadRequest(f"the number of messages must be {expected}", param="messages")


def conversation_chars(conversation: Mapping[str, Any]) -> int:
    """Return how long the text is, about, that becomes the prompt of a `ChatBody.conversation`.

    Raises BadRequest for what is nested too deeply to be encoded.
    """
    chars = 0
    for message in conversation["messages"]:
        chars += len(message["content"]) + len(message.get("reasoning_content") or "")
        for call in message.get("tool_calls") or ():
            chars += len(call["function"]["arguments"])
    for name, value in conversation.items():
        if name != "messages":
            with refusing_depth(name):
                chars += len(msgspec.json.encode(value))
    return chars


def _v4_message(message: ChatMessage, where: str) -> dict[str, Any]:
    """Return a message as DeepSeek's API has it."""
    role = _V4_ROLES.get(message.role)
    if role is None:
        raise BadRequest(
            f"{where}: role must be one of {', '.join(_V4_ROLES)}, got {message.role[:80]!r}",
            param="messages",
        )
    if message.function_call or message.audio:
        raise BadRequest(f"{where}: function_call and audio are not supported", param="messages")
    check_message_tools(message, where)
    # Source: deepseek-recipe joins the parts of a content so.
    told: dict[str, Any] = {"role": role, "content": "\n\n".join(content_texts(message, where))}
    if role == "assistant":
        reasoning = message.reasoning_content
        reasoning = message.reasoning if reasoning is None else reasoning
        if reasoning is not None:
            told["reasoning_content"] = reasoning
        if message.tool_calls:
            told["tool_calls"] = [_v4_call(call) for call in message.tool_calls]
    if message.prefix:
        told["prefix"] = True
    if role == "tool" and message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return told


def check_message_tools(message: ChatMessage, where: str) -> None:
    """Refuse tools of a single message, which SGLang knows: left out, they would be missed."""
    if message.tools:
        raise BadRequest(f"{where}: give tools beside messages, not in one", param="messages")


def _v4_call(call: MessageToolCall) -> dict[str, Any]:
    arguments = call.called.arguments
    if not isinstance(arguments, str):
        with refusing_depth("messages"):
            arguments = msgspec.json.encode(arguments).decode()
    function = {"name": call.called.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _v4_tool(tool: Tool) -> dict[str, Any]:
    with refusing_depth("tools"):
        function = msgspec.to_builtins(tool.called)
    parameters = tool.called.parameters
    # OpenAI takes a schema that does not say it is an object's; DeepSeek's encoder does not.
    if parameters is not None and "type" not in parameters:
        function["parameters"] = {"type": "object", **parameters}
    return {"type": "function", "function": function}


def content_texts(message: ChatMessage, where: str) -> list[str]:
    """Return the texts of a message's content. Raises BadRequest for what is no text."""
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise BadRequest(f"{where}: content is missing", param="messages")
        return []
    if isinstance(content, str):
        return [content]
    for part in content:
        if part.type != "text" or part.text is None:
            raise BadRequest(
                f"{where}: only text content is supported, got {part.type[:80]!r}",
                param="messages",
            )
    return [part.text or "" for part in content]
