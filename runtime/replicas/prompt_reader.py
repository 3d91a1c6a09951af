"""Reads the prompt out of a request, in any dialect, by the code that answers requests.

The server's own application runs here on a manager without a scheduler: it records the call that
the request becomes, and refuses it. So keys, salts, chat templates and checks work exactly as on a
server, and a request that a server would refuse has no prompt.
"""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import numpy as np

from runtime.config import ServerConfig
from runtime.errors import BadRequest, Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import Ready
from runtime.replicas.upstream import HttpRequest
from runtime.server.app import create_app
from runtime.tokenizer.call import GenerateCall, pack_prompt
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.stream import Bundle, ResponseStream
from runtime.tokenizer.tokenizer import TextTokenizer

__all__ = ["GENERATES", "Prompt", "PromptReader"]

# Paths whose requests have prompts.
GENERATES = frozenset(
    {
        *("/generate", "/score", "/v1/completions", "/v1/chat/completions"),
        *("/v1/messages", "/v1/responses"),
    }
)
_noted: ContextVar[list[GenerateCall]] = ContextVar("noted")


class Prompt(NamedTuple):
    """A request's first prompt: [tokens] int32, and the cache namespace that it is looked up in."""

    tokens: np.ndarray
    namespace: str


class _NoSocket:
    """Stands in for the socket to a scheduler."""

    def send(self, message: object) -> None:
        """Do nothing."""


class _NotingManager(TokenizerManager):
    def generate(self, call: GenerateCall, bundle: Bundle | None = None) -> ResponseStream:
        """Note a call. Raises Unavailable, always."""
        _noted.get().append(call)
        raise Unavailable("nothing is computed here")


class PromptReader:
    """Finds the prompts of requests to servers with one configuration.

    config  of the servers, with paths filled in
    facts   a server's `/model_info`
    """

    def __init__(self, config: ServerConfig, facts: Mapping[str, Any]) -> None:
        """Load tokenizer and chat template. Raises ConfigError."""
        ready = Ready(
            context_tokens=int(facts["context_length"]),
            vocab_size=int(facts["vocab_size"]),
            eos_token_ids=[],
            info={"model_type": str(facts.get("model_type") or "")},
        )
        tokenizer = TextTokenizer.load(config.tokenizer_path or "")
        socket = cast("ManagerSocket", _NoSocket())
        self._manager = _NotingManager(config, tokenizer, socket, ready)
        self._app = create_app(self._manager, config)

    async def read(self, request: HttpRequest) -> Prompt | None:
        """Return the first prompt of a request; None where it has none, or is to be refused."""
        path, _, query = request.path.partition("?")
        if path not in GENERATES or request.method not in ("POST", "PUT"):
            return None
        token = _noted.set(noted := list[GenerateCall]())
        try:
            await self._answer(request, path, query)
        finally:
            _noted.reset(token)
        if not noted:
            return None
        call = noted[0]
        try:
            packed = await self._manager.in_thread(
                lambda: pack_prompt(call, self._manager.tokenizer, self._manager.limits),
                chars=len(call.text or ""),
            )
        except BadRequest:
            return None
        return Prompt(np.frombuffer(packed, "<i4"), call.namespace)

    async def _answer(self, request: HttpRequest, path: str, query: str) -> None:
        """Have the application answer a request; the reply is dropped."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # a client that stays
            sent = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            pass

        await self._app(scope, receive, cast("Any", send))
