"""The handlers of what generates, scores and tokenises: a body in, a reply out."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.server.body import read_body
from runtime.server.chat import Chats
from runtime.server.chat_schema import ChatBody
from runtime.server.native import Generations
from runtime.server.prompt import PromptedBody, Prompts
from runtime.server.replies import (
    NATIVE_KEEP_ALIVE,
    EventStream,
    events,
    json_reply,
    until_disconnect,
)
from runtime.server.score import ScoreBody, Scores
from runtime.server.service import Service
from runtime.server.tokenize import DetokenizeBody, TokenIds, TokenizeBody


class ModelRoutes:
    """Handlers of `/generate`, `/score`, `/v1/chat/completions`, `/tokenize`, `/detokenize`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chats = Chats(service)
        prompts = Prompts(service, self._chats)
        self._generations = Generations(service, prompts)
        self._scores = Scores(service, prompts)
        self._token_ids = TokenIds(service, self._chats)

    async def generate(self, request: Request) -> Response:
        """Continue one prompt or a batch."""
        body = await read_body(request, PromptedBody)
        plan = await self._generations.plan(body)
        if body.stream:
            chunks = self._generations.stream(plan, as_json=True)
            return EventStream(events(chunks), keep_alive=NATIVE_KEEP_ALIVE)
        return json_reply(
            await until_disconnect(request, self._generations.gather(plan, lazy=True))
        )

    async def score(self, request: Request) -> Response:
        """Return the log-probabilities of each choice."""
        body = await read_body(request, ScoreBody)
        return json_reply(await until_disconnect(request, self._scores.score(body)))

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody)
        plan = await self._chats.plan(body)
        if body.stream:
            return EventStream(events(self._chats.stream(plan)))
        return json_reply(await until_disconnect(request, self._chats.gather(plan)))

    async def tokenize(self, request: Request) -> Response:
        """Return token ids and how many they are; for a list of texts, lists of both."""
        tokens = await self._token_ids.tokens(await read_body(request, TokenizeBody))
        nested = bool(tokens) and isinstance(tokens[0], list)
        count: Any = [len(ids) for ids in tokens] if nested else len(tokens)
        limit = self._service.context_tokens
        return json_reply({"tokens": tokens, "count": count, "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, under both names that clients know."""
        text = await self._token_ids.text(await read_body(request, DetokenizeBody))
        return json_reply({"text": text, "prompt": text})
