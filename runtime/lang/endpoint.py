"""The backend that speaks to an Umbra server over its native endpoints."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from runtime.lang.backend import Generation, Piece
from runtime.lang.bodies import wait
from runtime.lang.choices import ChoiceScore
from runtime.lang.connection import Connection, HttpBackend
from runtime.lang.loop import LOOP
from runtime.lang.native import (
    check_reply,
    generate_fields,
    generation,
    prompt_fields,
    score,
)
from runtime.lang.prompt import Prompt
from runtime.lang.recent import recent
from runtime.lang.sampling import Sampling

if TYPE_CHECKING:
    import httpx


class Endpoint(HttpBackend):
    """A server at `base_url`, say "http://127.0.0.1:30000".

    What a model wrote is sent back as the ids it was written in, so that the next generation
    continues at the exact last token. A chat is rendered by the server.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        verify: bool = True,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        super().__init__(Connection(base_url, api_key=api_key, verify=verify, transport=transport))

    @property
    def model_info(self) -> dict[str, Any]:
        """Return `/model_info`; waits for it."""
        return wait(LOOP.submit(self.connection.get("/model_info")))

    async def generate(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        """Continue a prompt with one request."""
        reply = await self.connection.post("/generate", generate_fields(prompt, sampling))
        return [generation(one) for one in (reply if (sampling.n or 1) > 1 else [reply])]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Continue a prompt with one request, piece by piece."""
        body = {**generate_fields(prompt, sampling), "stream": True}
        seen, reply = 0, None
        async with aclosing(self.connection.events("/generate", body)) as events:
            async for reply in events:
                check_reply(reply, "text")
                text = reply["text"]
                yield Piece(text[seen:], meta_info=reply.get("meta_info") or {})
                seen = max(seen, len(text))
        if reply is not None:
            yield Piece("", generation(reply))

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], *, unconditional: bool
    ) -> tuple[list[ChoiceScore], dict[str, Any]]:
        """Score all choices with one request."""
        body = {**prompt_fields(prompt), "choices": choices, "unconditional": unconditional}
        reply = await self.connection.post("/score", body)
        return score(choices, reply)

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Compute a prompt and nothing after it."""
        body = {**prompt_fields(prompt), "sampling_params": {"max_new_tokens": 0}}
        await self.connection.post("/generate", body)

    async def aflush_cache(self) -> bool:
        """Empty the server's prefix cache; False while requests run."""
        recent(self).clear()
        return await self.connection.status("/flush_cache") == 200

    async def aserver_info(self) -> dict[str, Any]:
        """Return `/server_info`."""
        return await self.connection.get("/server_info")
