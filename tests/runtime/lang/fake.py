"""A backend that is no model: answers from a function, counts, and can be held."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from runtime.errors import RequestError
from runtime.lang.backend import DirectCalls, Generation, Piece
from runtime.lang.choices import ChoiceScore
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt
from runtime.lang.sampling import Sampling


def shown(prompt: Prompt) -> str:
    """Return a prompt as text, a chat with its roles."""
    if not prompt.turns:
        return prompt.text
    return "".join(f"[{t.role}]{t.content}" for t in prompt.turns) + ("..." if prompt.open else "")


class FakeBackend(DirectCalls):
    """Says `reply(text of the prompt)`.

    prompts    of every generation, as text
    samplings  of every generation
    cached     every prefix that was asked to be computed
    scored     (prompt, choices, unconditional) of every select
    cancelled  requests that were ended while they ran
    error      raised by every generation, if set
    most       generations that ran at the same time, at most
    """

    def __init__(self, reply: Callable[[str], str] = lambda text: f"<{len(text)}>") -> None:
        self.reply = reply
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []
        self.cached: list[str] = []
        self.scored: list[tuple[str, tuple[str, ...], bool]] = []
        self.cancelled = 0
        self.error: RequestError | None = None
        self.most = 0
        self.flushed = False
        self.running = 0
        self.asked = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Let generations wait from now on."""
        self._open.clear()

    def release(self) -> None:
        """Let them go on, from any thread."""
        LOOP.call(self._open.set)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        """Answer at once, or when released."""
        text = await self._answer(prompt, sampling)
        meta = {"prompt": shown(prompt)}
        count = sampling.n or 1
        ids = tuple(text.encode())
        return [Generation(text + "'" * k, None if k else ids, meta) for k in range(count)]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Answer letter by letter."""
        text = await self._answer(prompt, sampling)
        for letter in text:
            yield Piece(letter)
        yield Piece("", Generation(text, tuple(text.encode()), {"streamed": True}))

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], *, unconditional: bool
    ) -> tuple[list[ChoiceScore], dict[str, Any]]:
        """Like later choices better."""
        self.scored.append((shown(prompt), choices, unconditional))
        scores = [
            ChoiceScore(c, (k,), (c,), (float(k),), (None,) if unconditional else None)
            for k, c in enumerate(choices)
        ]
        return scores, {"prompt_tokens": len(shown(prompt))}

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Note it."""
        self.cached.append(shown(prompt))

    async def aflush_cache(self) -> bool:
        """Note it."""
        self.flushed = True
        return True

    async def aserver_info(self) -> dict[str, Any]:
        """Say what this is."""
        return {"version": "fake"}

    async def aclose(self) -> None:
        """Do nothing."""

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> str:
        self.prompts.append(shown(prompt))
        self.samplings.append(sampling)
        self.running += 1
        self.most = max(self.most, self.running)
        self.asked.release()
        try:
            await asyncio.sleep(0)
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.ended.release()
        if self.error is not None:
            raise self.error
        return self.reply(shown(prompt))
