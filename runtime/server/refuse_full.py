"""Requests beyond the bounds of the queue: refused before anything reads them.

Under overload nearly all requests are refused. What that costs is taken from those that are not:
so no body is decoded, no chat rendered and nothing tokenised for it.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.errors import RequestError
from runtime.server.caller import caller
from runtime.server.errors import dialect_of, error_response
from runtime.tokenizer.manager import TokenizerManager

__all__ = ["GENERATING_PATHS", "RefuseFull"]

GENERATING_PATHS = frozenset(
    {
        *("/generate", "/score", "/v1/completions"),
        *("/v1/chat/completions", "/v1/messages", "/v1/responses"),
    }
)
_METHODS = frozenset({"POST", "PUT"})


class RefuseFull:
    """ASGI middleware that answers 429 while no further request of the caller can wait.

    Answers 503 while the server stops, or its engine is gone. The caller must be known by now.
    """

    def __init__(self, app: ASGIApp, *, manager: TokenizerManager) -> None:
        self._app = app
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        generates = scope["type"] == "http" and scope["path"] in GENERATING_PATHS
        refusal = None
        if generates and scope["method"] in _METHODS:
            refusal = self._manager.refusal_at_once(caller().share)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        await _refuse(refusal, scope, receive, send)


async def _refuse(refusal: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
    """Drop the body, then answer: a connection closed before that would lose the answer."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    await error_response(refusal, dialect_of(scope))(scope, receive, send)
