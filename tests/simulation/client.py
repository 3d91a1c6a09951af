"""Clients of the manager: each makes one call, reads it in its own way, and judges the answer."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from runtime.errors import (
    Aborted,
    BadRequest,
    PromptTooLong,
    QueueFull,
    RequestError,
    RequestFailed,
    TimedOut,
    Unavailable,
)
from runtime.messages import Logprobs
from runtime.share import Share
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Delta, Finish
from runtime.tokenizer.stream import ResponseStream
from tests.simulation.clock import VirtualClock
from tests.simulation.engine import Engine
from tests.simulation.expected import Answer, sampling_of
from tests.simulation.pipes import Violation
from tests.simulation.script import Arrive

# Tokens that no reader leaves lying.
EVERYTHING = 1 << 16
SHARES = (
    Share("@10.0.0.1"),
    Share("alice", weight=2.0),
    Share("bob", weight=0.5),
    Share("carol", max_running=1, max_queued=4),
)


@dataclass(slots=True)
class Heard:
    """What a client has of one choice."""

    tokens: list[int] = field(default_factory=list[int])
    text: str = ""
    values: list[float | None] = field(default_factory=list["float | None"])
    prompt_values: list[float | None] | None = None
    finish: Finish | None = None


class Client:
    """One call and what came of it.

    engine   that served it
    in_flight  asked for how many requests the manager has
    ids      of its requests, once it was sent
    aborted  somebody has aborted it
    lost_s   when its engine died; None: it did not
    error    that it got
    done     it has read all, or went away
    """

    def __init__(
        self,
        call: Arrive,
        engine: Callable[[], Engine],
        clock: VirtualClock,
        in_flight: Callable[[], int],
    ) -> None:
        self.call, self._clock = call, clock
        self._engine, self.engine = engine, engine()
        self._in_flight = in_flight
        self.began_s = clock.now_s
        self.ids: list[int] = []
        self.aborted = self.done = self.left = self.draining = False
        self.lost_s: float | None = None
        self.slack_s = 0.0
        self.error: RequestError | None = None
        self.heard = [Heard() for _ in range(call.n)]
        self.task: asyncio.Task[None] | None = None

    @cached_property
    def answers(self) -> list[Answer]:
        """What it must be answered."""
        return [self.engine.expected.answer(self.call, k) for k in range(self.call.n)]

    def generate_call(self) -> GenerateCall:
        """Return the call as the server hands it to the manager."""
        call = self.call
        return GenerateCall(
            sampling_of(call),
            input_ids=call.tokens,
            logprobs=Logprobs(max(len(call.prompt) - 4, 0)) if call.logprobs else None,
            namespace=call.namespace,
            priority=call.priority,
            share=SHARES[call.share],
            timeout_s=call.timeout_s,
            stream=call.stream,
            rid=f"call {call.key}",
            measured=not call.background,
            boundaries=call.boundaries,
        )

    async def run(self, stream: ResponseStream) -> None:
        """Make the call, read it, judge it. Raises Violation."""
        call, read = self.call, 0
        try:
            await stream.start()
            self.ids = [choice.request_id for choice in stream._group.choices]
            self.engine = self._engine()
            self.engine.calls.update(dict.fromkeys(self.ids, call))
            if call.reader == "never":
                await asyncio.sleep(call.patience_s)
            async for delta in stream:
                self._hear(delta)
                read += 1
                if call.reader in ("leave", "drop") and read >= call.deltas:
                    self.left = True
                    break
                if call.reader == "slow":
                    await asyncio.sleep(call.patience_s)
            if call.reader != "drop":
                await stream.aclose()
        except RequestError as error:
            self.error = error
        finally:
            self.done = True
            self.engine.left_s.update(dict.fromkeys(self.ids, self._clock.now_s))
        self.judge()

    def _hear(self, delta: Delta) -> None:
        heard = self.heard[delta.index]
        if heard.finish is not None:
            raise self._fault("has news after its finish")
        heard.tokens += delta.token_ids
        told, right = (delta.prompt_tokens, delta.completion_tokens), len(self.call.prompt)
        if told != (right, len(heard.tokens)):
            raise self._fault(f"counts {told} tokens, not {right} and {len(heard.tokens)}")
        heard.text += delta.text
        heard.finish = delta.finish
        if delta.logprobs is not None:
            heard.values += delta.logprobs.values
        if delta.prompt_logprobs is not None:
            if heard.prompt_values is not None:
                raise self._fault("gets the values of its prompt twice")
            heard.prompt_values = [*delta.prompt_logprobs.values]

    def _fault(self, text: str) -> Violation:
        return Violation(f"call {self.call.key} {text}")

    # --- what it may hear

    def judge(self) -> None:
        """Raise Violation unless the answer is right, or cut off for a good reason."""
        if self.error is not None:
            self._judge_error(self.error)
            if not any(heard.tokens or heard.finish for heard in self.heard):
                return
        for heard, answer in zip(self.heard, self.answers, strict=True):
            self._judge_choice(heard, answer)

    def _judge_choice(self, heard: Heard, answer: Answer) -> None:
        count, finish = len(heard.tokens), heard.finish
        if heard.tokens != answer.tokens[:count]:
            at = next(k for k, t in enumerate(heard.tokens) if [t] != answer.tokens[k : k + 1])
            raise self._fault(
                f"has token {at} wrong: {heard.tokens[at:]}, not {answer.tokens[at:]}"
            )
        if self.call.logprobs and heard.values != answer.values[:count]:
            raise self._fault(f"has log-probabilities {heard.values}, not {answer.values}")
        if finish is None:
            if self.error is None and not self.left:
                raise self._fault("was left without a finish")
            return
        if finish.type in ("stop", "length"):
            right = (answer.tokens, answer.finish, answer.matched, answer.text)
            got = (heard.tokens, finish.type, finish.matched, heard.text)
            if got != right:
                raise self._fault(f"ends as {got}, not as {right}")
            return
        if finish.type == "abort" and not self._may_be_cut():
            raise self._fault(f"was aborted by nobody: {finish.message}")
        if finish.type == "error" and not self._is_hurt:
            raise self._fault(f"failed: {finish.message}")

    @property
    def _is_hurt(self) -> bool:
        return not self.engine.hurt.isdisjoint(self.ids)

    @property
    def limit_s(self) -> float | None:
        """Seconds that it may take."""
        server_s = None if self.call.background else self.engine.world.request_timeout_s
        return min((s for s in (server_s, self.call.timeout_s) if s is not None), default=None)

    def _timed_out(self) -> bool:
        return self.limit_s is not None and self._clock.now_s - self.began_s >= self.limit_s

    def _may_be_cut(self) -> bool:
        return self.aborted or self._is_unread or self._timed_out() or self.draining

    @property
    def _is_unread(self) -> bool:
        return self.engine.world.unread < EVERYTHING

    def _judge_error(self, error: RequestError) -> None:
        call, world = self.call, self.engine.world
        waited_s = self._clock.now_s - self.began_s
        match error:
            case RequestFailed():
                right = self._is_hurt
            case PromptTooLong():
                asked = 1 if call.new is None else call.new
                right = len(call.prompt) + max(asked, call.least) > self.engine.context
            case TimedOut():
                right = self._timed_out()
            case QueueFull():
                limited = SHARES[call.share].max_queued is not None
                seen = max(self._in_flight(), self.engine.most_in_flight)
                crowd = seen + call.n > world.max_queued
                right = limited or crowd or world.max_queued_tokens is not None
            case Aborted():
                right = self.aborted or self._is_unread
            case Unavailable():
                late = world.queue_timeout_s is not None and waited_s >= world.queue_timeout_s
                right = self.lost_s is not None or self.draining or late
            case BadRequest():
                right = call.n > world.max_queued + world.rows * world.replicas
            case _:
                right = False
        if not right:
            raise self._fault(f"got {type(error).__name__}: {error}")


def cancel(client: Client) -> None:
    """Let a client go without a word."""
    client.left = client.done = True  # a task that has not begun never ends by itself
    if client.task is not None and not client.task.done():
        with contextlib.suppress(asyncio.CancelledError):
            client.task.cancel()
