"""Conversations to token ids in the V4 format, through DeepSeek's own encoder.

What a message says stays text: the encoder encodes it apart from the control tokens that it
writes itself, by a vocabulary without them. Source: deepseek-recipe, which the checkpoints of V4
point to instead of a Jinja template.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import deepseek_recipe as recipe
import msgspec
from tokenizers import Tokenizer

from runtime.chat.chat_prompt import ChatPrompt
from runtime.chat.marks import USER, knows_v4, marks_by_id
from runtime.errors import BadRequest, ConfigError

_MODEL = "DeepSeek-V4-Pro"  # selects the V4 rendering; V4 Flash shares it


# What a refusal may be about, each with what only stands beside it.
_BESIDE_MESSAGES = (("tools", "tool_choice"), ("response_format",))


class _Fault(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Fault


class V4Encoder:
    """Encodes conversations for one tokenizer that knows V4's control tokens.

    marks  the mark (see `runtime.chat.marks`) of each token id that structures an answer
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError for a tokenizer that does not know V4."""
        if not knows_v4(tokenizer):
            raise ConfigError("this tokenizer lacks control tokens of the V4 chat format")
        try:
            own = recipe.Tokenizer.from_str(tokenizer.to_str())
        except (RuntimeError, ValueError) as fault:
            raise ConfigError(f"the V4 encoder cannot read this tokenizer: {fault}") from fault
        self._encoding = recipe.DeepseekV4Encoding().with_tokenizer(own)
        self._options = recipe.ConversionOptions()
        self._user_id = tokenizer.token_to_id(USER)
        self.marks = marks_by_id(tokenizer)

    def encode(
        self, request: Mapping[str, Any], *, check: Callable[[str], None] | None = None
    ) -> ChatPrompt:
        """Return the prompt of a conversation; takes long, meant for a thread.

        request  `messages` and, where given, `tools`, `tool_choice`, `thinking`,
                 `reasoning_effort` and `response_format`, in the shape of DeepSeek's chat API
        check    is shown the whole text before it is tokenised, and may raise
        Raises BadRequest for what that API refuses, naming the field.
        """
        converted = self._convert(request)
        conversation, parsing = converted.conversation, converted.parsing_options
        if check is not None:
            check(self._encoding.render_conversation(conversation).prompt)
        stage = parsing.thinking_initial_stage
        return ChatPrompt(
            token_ids=self._encode(conversation),
            thinking=stage is not None,
            reasoning=stage is not None and stage.starts_in_reasoning(),
            tools={tool.name: tool.parameters for tool in conversation.tools}
            if parsing.parse_tool_calls
            else None,
        )

    def encode_past(
        self, request: Mapping[str, Any], answer: Mapping[str, Any], results: Sequence[str]
    ) -> list[int]:
        """Return what the prompt of the turn after `answer` will begin with.

        answer   the assistant's message
        results  ids of its tool calls: they are answered before anything else is said
        Ends where the next user's turn, or the tools' results, would begin. Raises BadRequest.
        """
        said = [{"role": "tool", "tool_call_id": call_id, "content": ""} for call_id in results]
        after = said or [{"role": "user", "content": ""}]
        messages = [*request["messages"], answer, *after]
        ids = self._encode(self._convert({**request, "messages": messages}).conversation)
        if self._user_id not in ids:
            return []
        return ids[: len(ids) - 1 - ids[::-1].index(self._user_id)]

    def _convert(self, request: Mapping[str, Any]) -> recipe.ConversationRequest:
        """Return the conversation of a request, of which no schema is taken as strict.

        Of a strict one DeepSeek's own service leaves out, or refuses, what it cannot enforce. Here
        a grammar holds outputs to all of it, or refuses, and the model is told all of it.
        """
        lenient = _without_strict(request)
        try:
            return self._converted(lenient)
        except BadRequest as fault:
            raise BadRequest(fault.message, param=self._blamed(lenient)) from fault

    def _blamed(self, request: Mapping[str, Any]) -> str:
        """Return the field of a refused request that the refusal is about: without it is none."""
        for names in _BESIDE_MESSAGES:
            try:
                self._converted({k: v for k, v in request.items() if k not in names})
            except BadRequest:
                continue
            return names[0]
        return "messages"

    def _converted(self, request: Mapping[str, Any]) -> recipe.ConversationRequest:
        body = msgspec.json.encode({"model": _MODEL, **request})
        try:
            return recipe.ChatCompletionRequest(body).convert(self._options)
        except recipe.ConversionError as refusal:
            raise BadRequest(_reason(refusal.body)) from refusal
        except ValueError as refusal:
            raise BadRequest(str(refusal)) from refusal

    def _encode(self, conversation: recipe.Conversation) -> list[int]:
        try:
            return self._encoding.encode(conversation)
        except RuntimeError as fault:
            raise BadRequest(f"the messages cannot be encoded: {fault}", param="messages") from None


def _without_strict(node: Any) -> Any:
    """Return a request in which no schema is strict; what schemas say stays."""
    match node:
        case {"tools": [*tools], **rest}:
            return {**_without_strict(rest), "tools": [_without_strict(tool) for tool in tools]}
        case {"response_format": form, **rest}:
            return {**rest, "response_format": _without_strict(form)}
        case {"function": {"strict": _, **inner}, **rest}:
            return {**rest, "function": inner}
        case {"json_schema": {"strict": _, **inner}, **rest}:
            return {**rest, "json_schema": inner}
        case _:
            return node


def _reason(body: str) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return body
