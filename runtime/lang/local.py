"""The backend that runs programs on an engine in this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from runtime.lang.backend import DirectCalls, Generation, Piece
from runtime.lang.choices import ChoiceScore
from runtime.lang.connection import MAX_REQUESTS
from runtime.lang.native import generate_fields, generation, prompt_fields, score
from runtime.lang.patience import patiently
from runtime.lang.prompt import Prompt
from runtime.lang.recent import recent
from runtime.lang.sampling import Sampling

if TYPE_CHECKING:
    from runtime.engine.engine import Engine


class Local(DirectCalls):
    """An engine that the caller made, and ends: `Local(Engine(model_path=...))`.

    Programs give the same as on a server's `Endpoint`; what goes between is no HTTP.
    """

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self._slots = asyncio.Semaphore(MAX_REQUESTS)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        """Continue a prompt with one request."""
        fields = _named(generate_fields(prompt, sampling))
        async with self._slots:
            reply = await patiently(lambda: self.engine.async_generate(**fields))
        return [generation(one) for one in (reply if (sampling.n or 1) > 1 else [reply])]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Continue a prompt with one request, piece by piece."""
        fields = _named(generate_fields(prompt, sampling))

        async def begin() -> tuple[AsyncGenerator[Any, None], Any]:
            chunks = await self.engine.async_generate(**fields, stream=True)
            return chunks, await anext(chunks)

        async with self._slots:
            chunks, reply = await patiently(begin)
            async with aclosing(chunks):
                yield Piece(reply["text"], meta_info=reply["meta_info"])
                seen = len(reply["text"])
                async for reply in chunks:
                    yield Piece(reply["text"][seen:], meta_info=reply["meta_info"])
                    seen = len(reply["text"])
        yield Piece("", generation(reply))

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], *, unconditional: bool
    ) -> tuple[list[ChoiceScore], dict[str, Any]]:
        """Score all choices with one request."""
        fields = _named(prompt_fields(prompt))
        fields |= {"choices": choices, "unconditional": unconditional}
        async with self._slots:
            reply = await patiently(lambda: self.engine.async_score(**fields))
        return score(choices, reply)

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Compute a prompt and nothing after it."""
        fields = _named(prompt_fields(prompt))
        fields["sampling_params"] = {"max_new_tokens": 0}
        async with self._slots:
            await patiently(lambda: self.engine.async_generate(**fields))

    async def aflush_cache(self) -> bool:
        """Empty the engine's prefix cache; False while requests run."""
        recent(self).clear()
        return await asyncio.to_thread(self.engine.flush_cache)

    async def aserver_info(self) -> dict[str, Any]:
        """Return what `Engine.server_info` does."""
        return await asyncio.to_thread(self.engine.server_info)

    async def aclose(self) -> None:
        """Do nothing: the engine is its maker's."""


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a request as arguments of the engine, which calls its text `prompt`."""
    return {"prompt" if name == "text" else name: value for name, value in fields.items()}
