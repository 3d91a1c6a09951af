"""Keeps the cache warm where the next turn will not repeat what was generated.

V4's format drops the reasoning of earlier turns, as templates of Qwen3, R1 and gpt-oss do, so that
the turn after `<Assistant><think>R</think>C` begins with `<Assistant></think>C`: from the answer on
nothing matches, however long the answer. Once such an answer is out, the prompt that the next turn
will begin with is prefilled in the background, below every client's priority and only while rows
are free. The work is not extra where a next turn comes: it is done before the user has finished
typing, instead of after.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runtime.chat.chat_prompt import ChatPrompt
from runtime.errors import RequestError
from runtime.sampling import SamplingSpec
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.manager import TokenizerManager

# Returns what the prompt of the turn after an answer will begin with.
Past = Callable[[], Awaitable[list[int]]]

logger = logging.getLogger("umbra.next_turn")

LEAST_PRIORITY = -(1 << 15)
# A shorter answer is computed again in the step that prefills the user's next message anyway.
LEAST_TOKENS = 64


class NextTurn:
    """Prefills the beginnings of next turns."""

    def __init__(self, manager: TokenizerManager) -> None:
        self._manager = manager
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(self, past: Past, *, prompt: ChatPrompt, call: GenerateCall) -> None:
        """Start prefilling what `past` returns: the beginning of the turn after an answer.

        prompt  what was answered, asked with `call`
        """
        manager = self._manager
        if manager.draining or manager.in_flight >= manager.rows:
            return
        task = asyncio.ensure_future(self._prefill(past, prompt=prompt, call=call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what runs in the background, so that the engine can be seen idle."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prefill(self, past: Past, *, prompt: ChatPrompt, call: GenerateCall) -> None:
        try:
            ids = await past()
            if len(ids) - len(prompt.token_ids) < LEAST_TOKENS:
                return
            warm = GenerateCall(
                sampling=SamplingSpec(max_new_tokens=0),
                input_ids=ids,
                namespace=call.namespace,
                priority=LEAST_PRIORITY,
                share=call.share,
                stream=False,
                measured=False,
            )
            async with self._manager.generate(warm) as deltas:
                async for _ in deltas:
                    pass
        except RequestError as refusal:
            logger.debug("a next turn was not prefilled: %s", refusal)


def drops_reasoning(request: Mapping[str, Any], prompt: ChatPrompt) -> bool:
    """Say whether the next turn will leave out the reasoning of this one.

    With tools the format keeps what the client sends back, so it depends on the client: whether
    the answers of its own history have any.
    """
    if prompt.tools is None:
        return True
    answers = [m for m in request["messages"] if m["role"] == "assistant"]
    return bool(answers) and not any(m.get("reasoning_content") for m in answers)
