"""Plays a workload against a server: who starts when, and what goes on from what."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tests.bench.serving.client import Client
from tests.bench.serving.dialects import Dialect
from tests.bench.serving.outcome import Outcome
from tests.bench.serving.prompt import Asked, Prompt
from tests.bench.serving.workload import Call, Workload


@dataclass(frozen=True, slots=True)
class Arrival:
    """When calls that begin by themselves begin; those that go on follow their answer at once.

    rate         such calls a second, at random times (a Poisson process); None: all at once
    concurrency  conversations or trees in flight at most: the next begins when one has ended;
                 None: no limit
    """

    rate: float | None = None
    concurrency: int | None = None


class Runner:
    """Runs the calls of one workload.

    on_end  called after each request
    """

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        *,
        seed: int = 0,
        on_end: Callable[[Outcome], object] = lambda outcome: None,
    ) -> None:
        self._client = client
        self._dialect = dialect
        self._seed = seed
        self._on_end = on_end

    async def run(self, workload: Workload, arrival: Arrival) -> list[Asked]:
        """Return every call that was sent, in the order in which they ended.

        What goes on from a failed call is not sent.
        """
        asked: list[Asked] = []
        room = asyncio.Semaphore(arrival.concurrency) if arrival.concurrency else None
        async with asyncio.TaskGroup() as group:
            async for root in self._arrivals(workload.roots, arrival.rate):
                group.create_task(self._from_root(workload, root, room, asked))
        return asked

    async def _arrivals(self, roots: Sequence[int], rate: float | None) -> AsyncIterator[int]:
        """Yield the calls when their time has come."""
        rng = random.Random(f"arrivals {self._seed}")
        clock = asyncio.get_running_loop().time
        due_s = clock()
        for root in roots:
            if rate is not None:
                await asyncio.sleep(due_s - clock())
                due_s += rng.expovariate(rate)
            yield root

    async def _from_root(
        self, workload: Workload, root: int, room: asyncio.Semaphore | None, asked: list[Asked]
    ) -> None:
        async with room or contextlib.nullcontext():
            await self._branch(workload, root, Prompt.begin(workload.calls[root]), asked)

    async def _branch(
        self, workload: Workload, index: int, prompt: Prompt, asked: list[Asked]
    ) -> None:
        """Send a call, then all that go on from it, at once."""
        call = workload.calls[index]
        outcome = await self._client.send(self._dialect, prompt, call.output_tokens)
        answer = self._answer(call, index, outcome)
        asked.append(Asked(call, prompt, outcome, answer if self._is_known(outcome) else ()))
        self._on_end(outcome)
        if outcome.error is not None:
            return
        async with asyncio.TaskGroup() as group:
            for child in workload.children[index]:
                grown = prompt.go_on(answer, outcome.answer_text, workload.calls[child])
                group.create_task(self._branch(workload, child, grown, asked))

    def _answer(self, call: Call, index: int, outcome: Outcome) -> Sequence[int]:
        """Return what the next prompt repeats: the answer, or as many other ids."""
        if outcome.answer_ids and len(outcome.answer_ids) == outcome.generated:
            return outcome.answer_ids
        rng = random.Random(f"answer {self._seed} {index}")
        return rng.choices(call.user, k=outcome.generated)

    def _is_known(self, outcome: Outcome) -> bool:
        """Say whether the next prompt repeats exactly what the server has generated."""
        if self._dialect.by_text:
            return bool(outcome.answer_text) and not outcome.reasoned
        return bool(outcome.answer_ids) and len(outcome.answer_ids) == outcome.generated
