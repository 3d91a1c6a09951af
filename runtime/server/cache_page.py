"""The tree and the pools as JSON at `/cache`, and a page at `/` that draws them, live.

Who may see what. `/cache` needs the key like every path that answers with data. There is one key,
so whoever has it is the operator, and sees the structure of all namespaces: lengths, ages, locks,
counts. Those are the operator's own users, told apart by salts; a front end that serves several of
them must not pass `/cache` on. Even the operator sees no token, no salt and no name: a namespace
is a number and a digest that means nothing outside the running process. The page holds no data at
all, and loads without the key; it asks for it and sends it along.

What it may cost. The scheduler makes a view between two steps. However many clients ask, it is
asked one question at a time and at most five a second, and those who ask the same share an answer.
A body is at most about 4 MB: see `runtime.scheduler.cache_view` for what it leaves out.
"""

import asyncio
import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runtime.cache_messages import CacheView
from runtime.errors import BadRequest, QueueFull, Unavailable
from runtime.server.facts import rank_memory
from runtime.server.replies import json_reply, until_disconnect
from runtime.server.service import Service
from runtime.tokenizer.manager import TokenizerManager

DEFAULT_SPANS = 1000
MAX_SPANS = 10_000
INTERVAL_S = 0.2
ANSWER_LIMIT_S = 10.0
# Different questions that may wait for their turn.
MAX_QUESTIONS = 8
UNIT_BYTES = {"full": "full_page_bytes", "swa": "swa_page_bytes", "rings": "ring_bytes"}
PAGE = Path(__file__).with_name("cache_page.html")

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class CacheRoutes:
    """Handlers of `/cache` and `/`."""

    def __init__(self, service: Service) -> None:
        """Read the page once. Raises OSError where it is not beside this module."""
        self._manager = service.manager
        self._replicas = service.replicas
        self._views = SharedViews(service.manager)
        self._page = PAGE.read_text("utf-8")
        self._headers = {
            "Content-Security-Policy": content_policy(self._page),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }

    async def cache(self, request: Request) -> Response:
        """Return the cache as JSON.

        Raises BadRequest for a bad `max_spans` or `replica`, Unavailable while the scheduler does
        not answer.
        """
        limit = max_spans(request.query_params.getlist("max_spans"))
        given = request.query_params.getlist("replica")
        replica = _number("replica", given, default=0, least=0, most=self._replicas - 1)
        work = asyncio.wait_for(self._views.get(limit, replica), ANSWER_LIMIT_S)
        try:
            view = await until_disconnect(request, work)
        except TimeoutError:
            raise Unavailable("the scheduler is in a long step: ask again later") from None
        reply = json_reply(self._body(view, replica))
        reply.headers["Cache-Control"] = "no-store"
        return reply

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return Response(self._page, media_type="text/html", headers=self._headers)

    def _body(self, view: CacheView, replica: int) -> dict[str, Any]:
        """Return what clients get: the view, bytes of units, and what memory of ranks holds."""
        body = msgspec.structs.asdict(view)
        del body["call_id"]
        body |= {"replica": replica, "replicas": self._replicas}
        facts = self._manager.ready.info
        body["rank_memory"] = rank_memory(self._manager.ready.memory)
        body["pools"] = [
            {**msgspec.structs.asdict(pool), "unit_bytes": facts.get(UNIT_BYTES[pool.name])}
            for pool in view.pools
        ]
        return body


class SharedViews:
    """Asks the scheduler for views, slowly enough not to be in its way."""

    def __init__(self, manager: TokenizerManager) -> None:
        self._manager = manager
        self._asking: dict[tuple[int, int], asyncio.Task[CacheView]] = {}
        self._turn = asyncio.Lock()
        self._due_s = 0.0

    async def get(self, limit: int, replica: int) -> CacheView:
        """Return a view of at most `limit` spans of a replica, as it is now or was just before.

        Whoever leaves early does not end the question: it is under way, and others may share it.
        Raises QueueFull, and Unavailable.
        """
        question = (limit, replica)
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= MAX_QUESTIONS:
                raise QueueFull("too many different views are being asked for: try again later")
            task = asyncio.create_task(self._ask(limit, replica))
            self._asking[question] = task
            task.add_done_callback(lambda done: self._forget(question, done))
        return await asyncio.shield(task)

    async def _ask(self, limit: int, replica: int) -> CacheView:
        now = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(self._due_s - now())
            self._due_s = now() + INTERVAL_S
            return await self._manager.cache(limit, replica)

    def _forget(self, question: tuple[int, int], task: "asyncio.Task[CacheView]") -> None:
        del self._asking[question]
        # With nobody left to raise it to, a failure is no news.
        _ = task.cancelled() or task.exception()


def max_spans(values: list[str]) -> int:
    """Return the limit a client asks for. Raises BadRequest unless it is one number in range."""
    return _number("max_spans", values, default=DEFAULT_SPANS, least=1, most=MAX_SPANS)


def _number(name: str, values: list[str], *, default: int, least: int, most: int) -> int:
    """Return a parameter. Raises BadRequest unless it is given once, and in range."""
    if not values:
        return default
    text = values[0]
    # Longer digits than any limit has are not worth a conversion.
    good = len(values) == 1 and re.fullmatch(r"[0-9]{1,9}", text)
    if not good or not least <= int(text) <= most:
        shown = ", ".join(values)[:80]
        raise BadRequest(
            f"{name} must be one whole number from {least} to {most}, got {shown!r}", param=name
        )
    return int(text)


def content_policy(page: str) -> str:
    """Return a Content-Security-Policy that lets `page` run its own script and style only.

    Nothing is loaded from elsewhere, and no text can become markup.
    """
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
