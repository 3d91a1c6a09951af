"""Text to token ids and back, as `/tokenize` and `/detokenize` do it, without HTTP."""

from typing import Any, ClassVar

import msgspec

from runtime.errors import BadRequest
from runtime.server.chat import Chats
from runtime.server.chat_schema import ChatBody, ChatMessage, Tool
from runtime.server.field_hints import FieldHints, HintedBody
from runtime.server.known_elsewhere import TOKENIZE
from runtime.server.service import Service

# A text takes a hundred times its size in memory while it is tokenised.
MAX_CHARS = 1 << 22
MAX_TOKENS = 1 << 20


class TokenizeBody(HintedBody, frozen=True):
    """`/tokenize`: a text, several, or a chat with all that its prompt depends on."""

    elsewhere: ClassVar[FieldHints] = TOKENIZE

    model: str | None = None
    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    thinking: Any = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """`/detokenize`."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class TokenIds:
    """Tokenises and detokenises."""

    def __init__(self, service: Service, chat: Chats) -> None:
        self._service = service
        self._chat = chat

    async def tokens(self, body: TokenizeBody) -> list[Any]:
        """Return token ids; a list of texts gives a list of lists. Raises BadRequest."""
        self._service.check_model(body.model)
        prompt = body.text if body.prompt is None else body.prompt
        if (prompt is None) == (body.messages is None):
            raise BadRequest("give either prompt or messages", param="prompt")
        if prompt is None:
            return await self._chat.encode(
                ChatBody(
                    messages=body.messages or [],
                    add_generation_prompt=body.add_generation_prompt,
                    continue_final_message=body.continue_final_message,
                    tools=body.tools,
                    tool_choice=body.tool_choice,
                    response_format=body.response_format,
                    thinking=body.thinking,
                    enable_thinking=body.enable_thinking,
                    chat_template_kwargs=body.chat_template_kwargs,
                    reasoning_effort=body.reasoning_effort,
                )
            )
        texts = [prompt] if isinstance(prompt, str) else prompt
        self._service.check_prompts(len(texts))
        self._check_size(sum(map(len, texts)), MAX_CHARS, "characters")
        if isinstance(prompt, str):
            return await self._encode(prompt, body)
        return [await self._encode(text, body) for text in prompt]

    async def text(self, body: DetokenizeBody) -> str:
        """Return the text of token ids. Raises BadRequest."""
        self._service.check_model(body.model)
        self._check_size(len(body.tokens), MAX_TOKENS, "tokens")
        manager = self._service.manager
        skip = True if body.skip_special_tokens is None else body.skip_special_tokens

        def work() -> str:
            if body.tokens:
                self._service.check_token_ids(body.tokens, param="tokens")
            return manager.tokenizer.decode(body.tokens, skip_special_tokens=skip)

        return await manager.in_thread(work)

    def _check_size(self, size: int, most: int, unit: str) -> None:
        """Raise BadRequest for more than others should wait for; for a whole context never."""
        most = max(most, 16 * self._service.context_tokens)
        if size > most and not self._service.trusted:
            raise BadRequest(f"at most {most} {unit} are taken at once, got {size}: send parts")

    async def _encode(self, text: str, body: TokenizeBody) -> list[int]:
        special = True if body.add_special_tokens is None else body.add_special_tokens
        return await self._service.manager.tokenize(text, add_special_tokens=special)
