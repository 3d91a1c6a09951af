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

from runtime.cache_messages import CacheView
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.errors import Aborted, RequestFailed, Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import (
    Abort,
    Flushed,
    FromScheduler,
    Output,
    Outputs,
    Queued,
    Ready,
    Refused,
    Shutdown,
    State,
    Stop,
)
from runtime.profile_messages import Profiled
from runtime.tokenizer.admitting import SHUTS_DOWN, Admitting
from runtime.tokenizer.call import GenerateCall, Limits
from runtime.tokenizer.choice import Choice, Finish, slices
from runtime.tokenizer.measuring import decode_seconds, hear_end, hear_news, hear_tokens
from runtime.tokenizer.observer import Observer
from runtime.tokenizer.questions import Asking, Questions
from runtime.tokenizer.queued_tokens import QueuedTokens
from runtime.tokenizer.stream import Bundle, Group, ResponseStream, refusal_of
from runtime.tokenizer.threads import TokeniserThreads
from runtime.tokenizer.tokenizer import TextTokenizer

logger = logging.getLogger("umbra.manager")

_SLICE_TOKENS = 2048
_LAST_WORDS_S = 1.0
_NOBODY = Observer()


class TokenizerManager(Admitting, Asking):
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
        # A dictionary for its order: calls are aborted in the order in which they came.
        self._groups: dict[Group, None] = {}
        self._labels: dict[str, Group] = {}
        self._bundles: set[Bundle] = set()
        self._arriving = 0
        self._idle = asyncio.Event()
        self.revive(socket, ready)

    # --- what the server calls

    def generate(self, call: GenerateCall, bundle: Bundle | None = None) -> ResponseStream:
        """Return the stream of a call; nothing is sent before it is started or read."""
        now_s = self.clock()
        observer = (self.observer if call.measured else _NOBODY).of_call(call.rid, started_s=now_s)
        group = Group(call.rid, started_s=now_s, observer=observer, bundle=bundle)
        group.share = call.share.name
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
        groups = [g for g in (self._groups if all else named) if not g.ended]
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

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text` without stalling the loop. Raises BadRequest."""
        work = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await self.in_thread(work, chars=len(text))

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
        self._queued = QueuedTokens(self.config.max_queued_tokens)

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
            return self._fail_all(Unavailable(SHUTS_DOWN), "abort")
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

    def leave(self, group: Group) -> None:
        """End what still runs of a group whose reader is gone; once."""
        if group.left:
            return
        group.left = True
        self._release(group)
        group.notify()
        self._groups.pop(group, None)
        if group.label is not None and self._labels.get(group.label) is group:
            del self._labels[group.label]
        gone = [c for c in group.choices if self._running.pop(c.request_id, None) is not None]
        for choice in gone:
            self._observe_end(group, choice, "abort")
        if gone:
            self._socket.send(Abort([choice.request_id for choice in gone]))
        self._check_idle()

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
            case Queued():
                self._queued.report(message)
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
