"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's requests as chats."""

from typing import Any, ClassVar, Literal

import msgspec

from runtime.errors import BadRequest, BadSampling
from runtime.server.chat_schema import EXTENSIONS, ChatBody, Tool, ToolFunction
from runtime.server.field_hints import FieldHints, HintedBody
from runtime.server.known_elsewhere import MESSAGES
from runtime.server.messages_blocks import Message, TextBlock
from runtime.server.messages_turns import chat_messages
from runtime.server.native_schema import TokenId

LEAST_THINKING_TOKENS = 1024

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "stream", *EXTENSIONS)


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs; `input_schema` is a JSON schema of an object."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


class ChooseAuto(msgspec.Struct, frozen=True, tag_field="type", tag="auto"):
    """The model calls tools or does not."""

    disable_parallel_tool_use: bool | None = None


class ChooseAny(msgspec.Struct, frozen=True, tag_field="type", tag="any"):
    """The model calls some tool."""

    disable_parallel_tool_use: bool | None = None


class ChooseTool(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """The model calls this tool."""

    name: str
    disable_parallel_tool_use: bool | None = None


class ChooseNone(msgspec.Struct, frozen=True, tag_field="type", tag="none"):
    """The model calls no tool."""


class ThinkingEnabled(msgspec.Struct, frozen=True, tag_field="type", tag="enabled"):
    """The model thinks. V4 knows no budget: `output_config.effort` says how much it thinks."""

    budget_tokens: int
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(msgspec.Struct, frozen=True, tag_field="type", tag="adaptive"):
    """The model thinks as it does when nothing is said."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(msgspec.Struct, frozen=True, tag_field="type", tag="disabled"):
    """The model answers at once."""


class OutputFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """What the answer's text has to be."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """`output_config`."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class ContextEdit(msgspec.Struct, frozen=True):
    """One entry of `context_management.edits`."""

    type: str


class ContextManagement(msgspec.Struct, frozen=True):
    """`context_management`."""

    edits: list[ContextEdit] | None = None


class CountBody(HintedBody, frozen=True, kw_only=True):
    """`/v1/messages/count_tokens`, and what of `/v1/messages` becomes the prompt.

    output_format  the earlier name of `output_config.format`
    """

    elsewhere: ClassVar[FieldHints] = MESSAGES

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ChooseAuto | ChooseAny | ChooseTool | ChooseNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    output_format: OutputFormat | None = None
    thread: Any = None

    def prompt(self) -> ChatBody:
        """Return the chat whose prompt this is. Raises BadRequest."""
        if self.thread:
            # By this code clients know that they have to send what was said before themselves.
            raise BadRequest(
                "thread: this server keeps no conversations, send all of it",
                param="thread",
                code="thread_unsupported_request",
            )
        self._check_context_management()
        choice = self.tool_choice
        one_call = not isinstance(choice, ChooseNone | None) and choice.disable_parallel_tool_use
        output = self.output_config or OutputConfig()
        self.elsewhere.refuse("output_config.task_budget", output.task_budget)
        return ChatBody(
            model=self.model,
            messages=chat_messages(self.system, self.messages),
            tools=[_tool(tool) for tool in self.tools] if self.tools else None,
            tool_choice=self._tool_choice(),
            parallel_tool_calls=False if one_call else None,
            thinking=self._thinking(),
            reasoning_effort=output.effort,
            response_format=self._response_format(),
        )

    @property
    def format_name(self) -> str:
        """The field that says what the answer must be."""
        return "output_config.format" if self.output_format is None else "output_format"

    def _response_format(self) -> dict[str, Any] | None:
        newer = None if self.output_config is None else self.output_config.format
        if self.output_format is not None and newer is not None:
            text = "output_format is the earlier name of output_config.format: give one of them"
            raise BadRequest(text, param="output_format")
        form = newer or self.output_format
        if form is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}}

    def _thinking(self) -> dict[str, str] | None:
        match self.thinking:
            case ThinkingEnabled(budget):
                if budget < LEAST_THINKING_TOKENS:
                    expected = f"at least {LEAST_THINKING_TOKENS}"
                    raise BadSampling("thinking.budget_tokens", expected, budget)
                return {"type": "enabled"}
            case ThinkingDisabled():
                return {"type": "disabled"}
            case _:
                return None

    def _tool_choice(self) -> Any:
        match self.tool_choice:
            case ChooseTool(name):
                return {"type": "function", "function": {"name": name}}
            case ChooseAny():
                return "required"
            case ChooseNone():
                return "none"
            case ChooseAuto():
                return "auto"
            case None:
                return None

    def _check_context_management(self) -> None:
        """Refuse edits of the context; V4's format itself drops thinking that is not needed."""
        asked = self.context_management or ContextManagement()
        if any(not edit.type.startswith("clear_thinking_") for edit in asked.edits or []):
            raise BadRequest(
                "context_management: this server edits no contexts", param="context_management"
            )


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """`/v1/messages`; the fields after `metadata` are extensions."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    seed: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[TokenId, float] | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | None = None

    def chat(self) -> ChatBody:
        """Return this request as a chat. Raises BadRequest."""
        thinking = self.thinking
        if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= self.max_tokens:
            raise BadSampling(
                "thinking.budget_tokens", "less than max_tokens", thinking.budget_tokens
            )
        shared = {name: getattr(self, name) for name in _SAMPLING}
        return msgspec.structs.replace(self.prompt(), stop=self.stop_sequences, **shared)

    @property
    def omits_thinking(self) -> bool:
        """Whether thinking is left out of the reply."""
        thinking = self.thinking
        if isinstance(thinking, ThinkingDisabled | None):
            return False
        return thinking.display == "omitted"


def _tool(tool: ClientTool) -> Tool:
    # Source: deepseek-recipe describes a tool that has no description with nothing.
    described = tool.description or ""
    return Tool(ToolFunction(tool.name, described, tool.input_schema, tool.strict))
