"""Admission: which calls are taken, and how they become requests of the scheduler."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from runtime.config import ServerConfig
from runtime.errors import Aborted, BadRequest, QueueFull, RequestError, Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import State
from runtime.share import Share
from runtime.tokenizer.call import GenerateCall, Limits, make_choices, make_requests, pack_prompt
from runtime.tokenizer.choice import Choice
from runtime.tokenizer.observer import Observer
from runtime.tokenizer.queued_tokens import QueuedTokens
from runtime.tokenizer.stream import Bundle, Group, queue_full, share_full, tokens_full
from runtime.tokenizer.threads import TokeniserThreads
from runtime.tokenizer.tokenizer import TextTokenizer

SHUTS_DOWN = "the server is shutting down"
_IDS_AT_ONCE = 1 << 16
Result = TypeVar("Result")


class Admitting(ABC):
    """The admission of a manager: counts, tokenises, checks and sends calls.

    limits    what a sequence may be
    rows      requests that may run at once
    draining  True: new calls are refused with Unavailable
    dead      why the engine is gone; None while it lives
    """

    config: ServerConfig
    tokenizer: TextTokenizer
    observer: Observer
    clock: Callable[[], float]
    limits: Limits
    rows: int
    draining: bool
    dead: str | None
    last_state: State | None
    _retry_after_s: int | None
    _seeds: Iterator[int]
    _ids: "itertools.count[int]"
    _threads: TokeniserThreads
    _queued: QueuedTokens
    _running: dict[int, tuple[Group, Choice]]
    _groups: dict[Group, None]
    _labels: dict[str, Group]
    _bundles: set[Bundle]
    _arriving: int
    _socket: ManagerSocket

    @property
    def in_flight(self) -> int:
        """Requests on their way, waiting or running; each of n choices counts."""
        return self._arriving + len(self._running)

    @property
    def room(self) -> int:
        """Requests that may be in flight at once: running and waiting for a row."""
        return self.config.max_queued_requests + self.rows

    def refusal_at_once(self, share: Share) -> RequestError | None:
        """Return why no call of `share` can be taken now, whatever it asks; None: one may be.

        It is observed as the refusal of a call.
        """
        refusal: RequestError | None = None
        if self.dead is not None:
            refusal = self._engine_gone()
        elif self.draining:
            refusal = Unavailable(SHUTS_DOWN)
        elif self.in_flight >= self.room:
            refusal = queue_full(self.in_flight, self.last_state)
        else:
            refusal = self._tokens_full(1, 1)
            if refusal is None and share.max_queued is not None:
                refusal = self._share_full(share, share.max_queued)
        if refusal is not None:
            observer = self.observer.of_call(None, started_s=self.clock())
            observer.refused(type(refusal).__name__)
        return refusal

    async def prepare(self, call: GenerateCall, group: Group) -> None:
        """Count, tokenise and check a call. Raises RequestError; then it does not count."""
        with self._noting_refusal(group):
            self._reserve(group, call.sampling.n)
            prompt = await self._packed(call)
            if full := self._tokens_full(len(prompt) // 4, call.sampling.n):
                raise full
            turn_id, traced = self.tokenizer.turn_id, group.observer.traced
            group.prepared = make_requests(
                call,
                prompt,
                self.limits,
                seed=next(self._seeds),
                ids=self._ids,
                turn_id=turn_id,
                traced=traced,
            )

    def send(self, call: GenerateCall, group: Group) -> None:
        """Send a prepared call. Raises RequestError; then nothing was sent."""
        with self._noting_refusal(group):
            self._refuse_if_closed(group)
            if group.error is not None or group.left:
                raise group.error or Aborted("closed before it was sent")
            took_s = self.clock() - group.started_s
            requests, group.prepared = group.prepared, []
            tokens = len(requests[0].input_ids) // 4
            if full := self._tokens_full(tokens, len(requests)):
                raise full
            group.choices = make_choices(call, requests, self.tokenizer)
            for request, choice in zip(requests, group.choices, strict=True):
                self._running[request.request_id] = (group, choice)
                self._socket.send(request)
                self._queued.sent(tokens)
            self._release(group)
            group.observer.stage("tokenize", took_s)

    async def in_thread(self, work: Callable[[], Result], *, chars: int = 0) -> Result:
        """Return what `work` (say, a chat template) returns; see `TokeniserThreads.run`."""
        return await self._threads.run(work, chars=chars)

    @contextmanager
    def _noting_refusal(self, group: Group) -> Iterator[None]:
        """Have a call that fails inside count no longer, and its refusal observed."""
        try:
            yield
        except BaseException as fault:
            self._release(group)
            if isinstance(fault, RequestError):
                group.observer.refused(type(fault).__name__)
            raise

    async def _packed(self, call: GenerateCall) -> bytes:
        """Return the prompt's ids; few are packed sooner than a thread gets the interpreter."""
        if call.input_ids is not None and len(call.input_ids) <= _IDS_AT_ONCE:
            return pack_prompt(call, self.tokenizer, self.limits)
        work = partial(pack_prompt, call, self.tokenizer, self.limits)
        return await self.in_thread(work, chars=len(call.text or ""))

    def _reserve(self, group: Group, count: int) -> None:
        self._refuse_if_closed(group)
        if group.bundle is not None:
            group.bundle.sending(group.label)
        if count > self.room:
            raise BadRequest(
                f"n must be at most {self.room} on this server, got {count}", param="n"
            )
        if self.in_flight + count > self.room:
            raise queue_full(self.in_flight, self.last_state)
        if group.label is not None:
            if group.label in self._labels:
                raise BadRequest("a request with this rid is running", param="rid")
            self._labels[group.label] = group
        self._groups[group] = None
        group.arriving = count
        self._arriving += count

    def _release(self, group: Group) -> None:
        """Count a call no longer among those that are still to be sent."""
        self._arriving -= group.arriving
        group.arriving = 0
        self._check_idle()

    def _refuse_if_closed(self, group: Group) -> None:
        if self.dead is not None:
            raise self._engine_gone()
        if self.draining and group.bundle not in self._bundles:
            raise Unavailable(SHUTS_DOWN)

    def _share_full(self, share: Share, most_queued: int) -> QueueFull | None:
        """Return the scheduler's refusal where the share has more than can wait and run."""
        rows = self.rows if share.max_running is None else min(self.rows, share.max_running)
        count = sum(group.share == share.name for group, _ in self._running.values())
        if count < most_queued + rows:
            return None
        return share_full(count - rows, self.last_state)

    def _tokens_full(self, tokens: int, count: int) -> QueueFull | None:
        """Return the scheduler's refusal where prompts exceed the bound on tokens that wait.

        It takes whatever finds a free row, however long.

        tokens  of each prompt
        count   of the call's choices, each with that prompt
        """
        queued, most = self._queued, self._queued.most
        if most is None or not queued.exceeds(count * tokens):
            return None
        if len(self._running) + count <= self.rows:
            return None
        return tokens_full(queued.count, count * tokens, most, self.last_state)

    @abstractmethod
    def _check_idle(self) -> None:
        """Note whether anything is in flight."""

    def _engine_gone(self) -> Unavailable:
        message = f"the engine died: {self.dead}"
        return Unavailable(message, retry_after_s=self._retry_after_s)
