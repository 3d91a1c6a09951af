"""The API process's end of every generation: text in, tokenise, send, await, abort.

All state belongs to one event loop. Tokenising runs in threads; everything else costs
microseconds a message, and a message that carries thousands of tokens is taken in slices.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from runtime.cache_messages import CacheView
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.errors import Aborted, BadRequest, RequestError, RequestFailed, Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import (
    Abort,
    Flushed,
    FromScheduler,
    Output,
    Outputs,
    Ready,
    Refused,
    Shutdown,
    State,
    Stop,
)
from runtime.profile_messages import Profiled
from runtime.tokenizer.call import GenerateCall, Limits, make_choices, make_requests, pack_prompt
from runtime.tokenizer.choice import Choice, Finish, slices
from runtime.tokenizer.measuring import decode_seconds, hear_end, hear_news, hear_tokens
from runtime.tokenizer.observer import Observer
from runtime.tokenizer.questions import Asking, Questions
from runtime.tokenizer.stream import Bundle, Group, ResponseStream, queue_full, refusal_of
from runtime.tokenizer.threads import TokeniserThreads
from runtime.tokenizer.tokenizer import TextTokenizer

logger = logging.getLogger("umbra.manager")

_SLICE_TOKENS = 2048
_IDS_AT_ONCE = 1 << 16
_LAST_WORDS_S = 1.0
_NOBODY = Observer()
_SHUTS_DOWN = "the server is shutting down"
Result = TypeVar("Result")


class TokenizerManager(Asking):
    """Turns calls into scheduler requests, and what comes back into streams.

    limits          what a sequence may be
    rows            requests that may run at once
    observer        hears what metrics are made of
    draining        True: new calls are refused with Unavailable
    dead            why the engine is gone; None while it lives
    last_state      the latest heartbeat
    last_heartbeat  clock reading when it came
    """

    def __init__(
        self,
        config: ServerConfig,
        tokenizer: TextTokenizer,
        socket: ManagerSocket,
        ready: Ready,
        *,
        clock: Callable[[], float] = time.monotonic,
        seeds: Iterator[int] | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.observer = Observer()
        self.clock = clock
        self.draining = False
        self._retry_after_s: int | None = None
        self._seeds = seeds or (secrets.randbits(63) for _ in itertools.count())
        # A random start, so that an id of an earlier life of this process means nobody.
        self._ids = itertools.count(secrets.randbits(48))
        self._threads = TokeniserThreads()
        self._running: dict[int, tuple[Group, Choice]] = {}
        self._groups: set[Group] = set()
        self._labels: dict[str, Group] = {}
        self._bundles: set[Bundle] = set()
        self._arriving = 0
        self._idle = asyncio.Event()
        self.revive(socket, ready)

    # --- what the server calls

    @property
    def in_flight(self) -> int:
        """Requests on their way, waiting or running; each of n choices counts."""
        return self._arriving + len(self._running)

    @property
    def room(self) -> int:
        """Requests that may be in flight at once: running and waiting for a row."""
        return self.config.max_queued_requests + self.rows

    def generate(self, call: GenerateCall, bundle: Bundle | None = None) -> ResponseStream:
        """Return the stream of a call; nothing is sent before it is started or read."""
        now_s = self.clock()
        observer = (self.observer if call.measured else _NOBODY).of_call(call.rid, started_s=now_s)
        group = Group(call.rid, started_s=now_s, observer=observer, bundle=bundle)
        return ResponseStream(self, call, group)

    @contextmanager
    def under_way(self, labels: Iterable[str | None] = ()) -> Iterator[Bundle]:
        """Yield the bundle of a request of several calls: a drain lets all of them finish.

        labels  of those that can be aborted by name before they are sent
        """
        bundle = Bundle(labels)
        if not self.draining:
            self._bundles.add(bundle)
        try:
            yield bundle
        finally:
            self._bundles.discard(bundle)
            self._check_idle()

    async def abort(self, rid: str | None = None, *, all: bool = False) -> int:
        """End the call that carries exactly this label, or every call; return how many.

        Their readers get what there is, and finish "abort".
        """
        named = [self._labels[rid]] if rid is not None and rid in self._labels else []
        groups = [g for g in (list(self._groups) if all else named) if not g.ended]
        unsent = sum(b.abort_all() if all else b.abort(rid) for b in self._bundles)
        for group in groups:
            if not group.choices:
                group.error = Aborted("aborted on request")
        ended = [(group, choice) for group in groups for choice in group.running]
        if ended:
            self._socket.send(Abort([choice.request_id for _, choice in ended]))
        # What was generated for who does not stream is still with the scheduler, which sends it.
        until_s = self.clock() + _LAST_WORDS_S
        for group, choice in sorted(ended, key=lambda pair: not pair[1].streams):
            while choice.request_id in self._running:
                if choice.streams or self.clock() > until_s:
                    choice.cut(Finish("abort", message="aborted on request"))
                    self._end(group, choice)
                else:
                    await asyncio.sleep(_LAST_WORDS_S / 100)
        return len(groups) + unsent

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text` without stalling the loop. Raises BadRequest."""
        work = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await self.in_thread(work, chars=len(text))

    async def in_thread(self, work: Callable[[], Result], *, chars: int = 0) -> Result:
        """Return what `work` (say, a chat template) returns; see `TokeniserThreads.run`."""
        return await self._threads.run(work, chars=chars)

    # --- life

    async def run(self) -> None:
        """Take in the scheduler's messages; ends by being cancelled."""
        while True:
            await self._receive(await self._socket.receive())
            # Of what came meanwhile readers hear at once: behind the scheduler an event is of
            # several tokens, and costs what one of one does.
            for message in self._socket.waiting():
                await self._receive(message)
            # A socket with messages waiting never suspends: let the readers have a turn.
            await asyncio.sleep(0)

    def engine_died(self, reason: str, *, retry_after_s: int | None = None) -> None:
        """Fail every waiting reader and caller, and refuse new calls from now on.

        retry_after_s  another scheduler will be ready then; None: there will be none
        """
        if self.dead is not None:
            return
        self.dead, self._retry_after_s = reason, retry_after_s
        self._fail_all(self._engine_gone(), "error")
        self._questions.fail(self._engine_gone())

    def revive(self, socket: ManagerSocket, ready: Ready) -> None:
        """Take calls again, for another scheduler, which knows nothing of the last one's."""
        self.ready = ready
        self.dead: str | None = None
        self.limits = Limits(ready.context_tokens, ready.vocab_size)
        default = device_sizes(self.config, "cpu").max_running_requests
        self.rows = int(ready.info.get("max_running_requests", default))
        self.last_state: State | None = None
        self.last_heartbeat = self.clock()
        self._socket = socket
        self._questions = Questions(socket, self._ids)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new calls, let running ones finish, then end the rest; return their number.

        Who still reads gets the news there are, then Unavailable: it did not ask for that end.
        """
        self.draining = True
        self._check_idle()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._bundles.clear()
            self._socket.send(Abort(list(self._running)))
            return self._fail_all(Unavailable(_SHUTS_DOWN), "abort")
        return 0

    def _fail_all(self, error: Unavailable, reason: str) -> int:
        """End every call with `error`; return how many. The scheduler is not told."""
        groups = [group for group in self._groups if not group.ended]
        for group in groups:
            group.error = group.error or error
            group.notify()
        for group, choice in list(self._running.values()):
            self._observe_end(group, choice, reason)
        self._running.clear()
        self._check_idle()
        return len(groups)

    def close(self) -> None:
        """Ask the scheduler to end, and give back the threads; the socket stays open."""
        self._socket.send(Shutdown())
        self._threads.close()

    # --- admission: what a stream calls

    async def admit(self, call: GenerateCall, group: Group) -> None:
        """Tokenise, count and send a call. Raises RequestError; then nothing was sent."""
        try:
            self._reserve(group, call.sampling.n)
            try:
                prompt = await self._packed(call)
                self._refuse_if_closed(group)
                if group.error is not None or group.left:
                    raise group.error or Aborted("closed before it was sent")
                took_s = self.clock() - group.started_s
                self._send(call, group, prompt)
                group.observer.stage("tokenize", took_s)
            finally:
                self._arriving -= call.sampling.n
                self._check_idle()
        except RequestError as refusal:
            group.observer.refused(type(refusal).__name__)
            raise

    async def _packed(self, call: GenerateCall) -> bytes:
        """Return the prompt's ids; few are packed sooner than a thread gets the interpreter."""
        if call.input_ids is not None and len(call.input_ids) <= _IDS_AT_ONCE:
            return pack_prompt(call, self.tokenizer, self.limits)
        return await self.in_thread(
            lambda: pack_prompt(call, self.tokenizer, self.limits), chars=len(call.text or "")
        )

    def leave(self, group: Group) -> None:
        """End what still runs of a group whose reader is gone; once."""
        if group.left:
            return
        group.left = True
        group.notify()
        self._groups.discard(group)
        if group.label is not None and self._labels.get(group.label) is group:
            del self._labels[group.label]
        gone = [c for c in group.choices if self._running.pop(c.request_id, None) is not None]
        for choice in gone:
            self._observe_end(group, choice, "abort")
        if gone:
            self._socket.send(Abort([choice.request_id for choice in gone]))
        self._check_idle()

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
        self._groups.add(group)
        self._arriving += count

    def _send(self, call: GenerateCall, group: Group, prompt: bytes) -> None:
        seed, turn_id, traced = next(self._seeds), self.tokenizer.turn_id, group.observer.traced
        requests = make_requests(
            call, prompt, self.limits, seed=seed, ids=self._ids, turn_id=turn_id, traced=traced
        )
        group.choices = make_choices(call, requests, self.tokenizer)
        for request, choice in zip(requests, group.choices, strict=True):
            self._running[request.request_id] = (group, choice)
            self._socket.send(request)

    def _refuse_if_closed(self, group: Group) -> None:
        if self.dead is not None:
            raise self._engine_gone()
        if self.draining and group.bundle not in self._bundles:
            raise Unavailable(_SHUTS_DOWN)

    def _engine_gone(self) -> Unavailable:
        message = f"the engine died: {self.dead}"
        return Unavailable(message, retry_after_s=self._retry_after_s)

    # --- messages from the scheduler

    async def _receive(self, message: FromScheduler) -> None:
        match message:
            case Outputs():
                for item in message.items:
                    for part in slices(item, _SLICE_TOKENS):
                        self._deliver(part)
                        if part is not item:
                            await asyncio.sleep(0)
            case Refused():
                self._refused(message)
            case State():
                self.last_state, self.last_heartbeat = message, self.clock()
                self._questions.answered(message)
            case Flushed() | CacheView() | Profiled():
                self._questions.answered(message)
            case Ready():
                logger.warning("ignored a second Ready message")

    def _deliver(self, item: Output) -> None:
        group, choice = self._running.get(item.request_id, (None, None))
        if group is None or choice is None:
            return  # it was aborted while this was under way
        observer, now_s, before = group.observer, self.clock(), choice.completion_tokens
        hear_news(observer, choice, item, now_s=now_s)
        choice.feed(item)
        count = choice.completion_tokens - before
        hear_tokens(observer, choice, count, started_s=group.started_s, now_s=now_s)
        if choice.finish is None:
            if choice.unread:
                self._end_unread(group)
            else:
                group.notify(choice)
            return
        if choice.finish.type == "error":
            group.error = RequestFailed(choice.finish.message or "the request failed")
        self._end(group, choice, decode_s=decode_seconds(choice, item, now_s=now_s))
        if item.finish is None:
            self._socket.send(Stop([item.request_id]))

    def _end_unread(self, group: Group) -> None:
        """End a call whose reader has stopped: what it does not fetch would fill the memory."""
        self._socket.send(Abort([choice.request_id for choice in group.running]))
        group.error = Aborted("the reply was not read")
        for choice in group.running:
            choice.cut(Finish("abort", message="the reply was not read"))
            self._end(group, choice, reason="unread")

    def _refused(self, message: Refused) -> None:
        group, choice = self._running.pop(message.request_id, (None, None))
        if group is None or choice is None:
            return
        group.error = refusal_of(message)
        group.observer.refused(type(group.error).__name__)
        self._check_idle()
        group.notify()

    def _end(
        self,
        group: Group,
        choice: Choice,
        *,
        decode_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Strike off a choice that has its finish, and tell its reader."""
        assert choice.finish is not None
        self._running.pop(choice.request_id, None)
        self._observe_end(group, choice, reason or choice.finish.type, decode_s=decode_s)
        self._check_idle()
        group.notify(choice)

    def _check_idle(self) -> None:
        if self.in_flight or self._bundles:
            self._idle.clear()
        else:
            self._idle.set()

    # --- measuring

    def _observe_end(
        self, group: Group, choice: Choice, reason: str, *, decode_s: float | None = None
    ) -> None:
        observer, now_s, started_s = group.observer, self.clock(), group.started_s
        hear_end(observer, choice, reason, decode_s=decode_s, started_s=started_s, now_s=now_s)
