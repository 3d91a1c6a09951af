"""Keeps the cache warm where the next turn will not repeat what was generated.

V4's format drops the reasoning of earlier turns, so that the turn after
`<Assistant><think>R</think>C` begins with `<Assistant></think>C`: from the answer on nothing
matches, however long the answer. Once such an answer is out, the prompt that the next turn will
begin with is prefilled in the background, below every client's priority and only while rows are
free. The work is not extra where a next turn comes: it is done before the user has finished
typing, instead of after.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from runtime.chat.chat_prompt import ChatPrompt
from runtime.chat.v4_encoder import V4Encoder
from runtime.errors import RequestError
from runtime.sampling import SamplingSpec
from runtime.server.chat_schema import conversation_chars
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.manager import TokenizerManager

logger = logging.getLogger("umbra.next_turn")

LEAST_PRIORITY = -(1 << 15)
# A shorter answer is computed again in the step that prefills the user's next message anyway.
LEAST_TOKENS = 64


class NextTurn:
    """Prefills the beginnings of next turns."""

    def __init__(self, manager: TokenizerManager, encoder: V4Encoder) -> None:
        self._manager = manager
        self._encoder = encoder
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(
        self,
        request: Mapping[str, Any],
        message: Mapping[str, Any],
        *,
        prompt: ChatPrompt,
        call: GenerateCall,
    ) -> None:
        """Start prefilling what follows `message`, where the format or the client drops reasoning.

        request  what was encoded to `prompt`, asked with `call` and answered with `message`
        """
        manager = self._manager
        if manager.draining or manager.in_flight >= manager.rows:
            return
        if not message.get("reasoning_content") or not drops_reasoning(request, prompt):
            return
        work = self._prefill(request, message, prompt=prompt, call=call)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what runs in the background, so that the engine can be seen idle."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prefill(
        self,
        request: Mapping[str, Any],
        message: Mapping[str, Any],
        *,
        prompt: ChatPrompt,
        call: GenerateCall,
    ) -> None:
        answer: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        if calls:
            answer["tool_calls"] = calls
        results = [call["id"] for call in calls]
        said = {**request, "messages": [*request["messages"], answer]}
        try:
            ids = await self._manager.in_thread(
                lambda: self._encoder.encode_past(request, answer, results),
                chars=conversation_chars(said),
            )
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
