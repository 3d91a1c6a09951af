"""`/tokenize` and `/detokenize`."""

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest
from runtime.server.body import read_body
from runtime.server.chat import ChatRoutes
from runtime.server.openai_schema import ChatBody, ChatMessage
from runtime.server.replies import json_reply
from runtime.server.service import Service


class TokenizeBody(msgspec.Struct, frozen=True):
    """`/tokenize`: a text, several, or a chat."""

    model: str | None = None
    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """`/detokenize`."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class TokenizeRoutes:
    """Handlers of `/tokenize` and `/detokenize`."""

    def __init__(self, service: Service, chat: ChatRoutes) -> None:
        self._service = service
        self._chat = chat

    async def tokenize(self, request: Request) -> Response:
        """Return token ids; a list of texts gives a list of lists."""
        body = await read_body(request, TokenizeBody)
        self._service.check_model(body.model)
        tokens: list[Any]
        prompt = body.text if body.prompt is None else body.prompt
        if (prompt is None) == (body.messages is None):
            raise BadRequest("give either prompt or messages", param="prompt")
        if prompt is None:
            tokens = await self._chat.encode(
                ChatBody(
                    messages=body.messages or [],
                    add_generation_prompt=body.add_generation_prompt,
                    continue_final_message=body.continue_final_message,
                )
            )
        elif isinstance(prompt, str):
            tokens = await self._encode(prompt, body)
        else:
            self._service.check_fan_out(len(prompt), 1)
            tokens = [await self._encode(text, body) for text in prompt]
        nested = isinstance(prompt, list)
        count: Any = [len(ids) for ids in tokens] if nested else len(tokens)
        limit = self._service.context_tokens
        return json_reply({"tokens": tokens, "count": count, "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, under both names that clients know."""
        body = await read_body(request, DetokenizeBody)
        self._service.check_model(body.model)
        if body.tokens:
            self._service.check_token_ids(body.tokens, param="tokens")
        manager = self._service.manager
        skip = True if body.skip_special_tokens is None else body.skip_special_tokens
        text = await manager.in_thread(
            lambda: manager.tokenizer.decode(body.tokens, skip_special_tokens=skip)
        )
        return json_reply({"text": text, "prompt": text})

    async def _encode(self, text: str, body: TokenizeBody) -> list[int]:
        special = True if body.add_special_tokens is None else body.add_special_tokens
        manager = self._service.manager
        work = partial(manager.tokenizer.encode, text, add_special_tokens=special)
        return await manager.in_thread(work)
