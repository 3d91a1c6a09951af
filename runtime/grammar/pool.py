"""The scheduler's side of grammars: a bounded set of processes, one for each different grammar.

    output ──open──> pool ──> grammar A (compiled): outputs 1, 2, 3
                       │ ───> grammar B (compiling): output 4
                       └line: grammar C waits for a place

A grammar's process is its cache entry: outputs of the same text share it, and it stays until its
place is wanted, least recently used first. Nothing here blocks, and nothing here runs a client's
grammar: whatever one does to its own process, the scheduler sees masks, or a socket that closed.
Nothing is started before the first output is opened.
"""

import hashlib
import logging
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runtime.durations import Durations
from runtime.grammar.nursery import NurserySettings
from runtime.grammar.nursery_process import Nursery, NurseryProcess
from runtime.grammar.output import GrammarOutput
from runtime.grammar.wire import (
    Accept,
    Channel,
    Close,
    Compile,
    Compiled,
    Failed,
    FromGrammar,
    Mask,
    Open,
    ToGrammar,
)
from runtime.messages import Grammar

logger = logging.getLogger("umbra.scheduler")

# The system shares its cores out among them: one that takes its whole time holds up few others.
COMPILING_AT_ONCE = 8
START_S = 120.0
_REMEMBERED_FAILURES = 256
_FAILURE_S = 60.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What grammars may cost.

    processes     grammars kept at once, compiled or compiling
    limit_s       seconds that compiling one, or one next mask, may take
    memory_bytes  that a grammar's process may take beyond what all share
    """

    nursery: NurserySettings
    processes: int = 32
    limit_s: float = 10.0
    memory_bytes: int = 1 << 28


@dataclass(slots=True, eq=False)
class _Place:
    """One grammar's process and the outputs that it serves, by slot."""

    key: bytes
    channel: Channel[FromGrammar]
    started_s: float
    compiled: bool = False
    outputs: dict[int, GrammarOutput] = field(default_factory=dict[int, GrammarOutput])


class GrammarPool:
    """Opens outputs, collects their masks, and tells which ones have failed.

    compilations  seconds from starting a grammar's process until it could be served
    """

    def __init__(
        self,
        settings: PoolSettings,
        *,
        nursery: Callable[[NurserySettings], Nursery] = NurseryProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._make_nursery = nursery
        self._clock = clock
        self.compilations = Durations()
        self._nursery: Nursery | None = None
        self._selector = selectors.DefaultSelector()
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._line: list[tuple[bytes, Grammar, GrammarOutput]] = []
        self._where: dict[GrammarOutput, tuple[_Place, int]] = {}
        self._failures: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._failed: list[GrammarOutput] = []
        self._told: set[_Place] = set()
        self._slots = 0
        self._end_ids = frozenset(settings.nursery.eos_token_ids)
        self._all = _all_but(settings.nursery.vocab_size, [])
        self._free = _all_but(settings.nursery.vocab_size, settings.nursery.eos_token_ids)

    @property
    def active(self) -> bool:
        """Whether there is any output; without one there is nothing to poll."""
        return bool(self._where or self._line or self._failed)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that only a complete output may go on with: the model's own end tokens."""
        return self._end_ids

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output, whose first mask is on its way."""
        before, now_s = self._before(grammar), self._clock()
        output = GrammarOutput(
            request_id, grammar.after, before, accept=_not_placed, opened_s=now_s
        )
        key = grammar.kind.encode() + _digest(grammar.text) + _digest(grammar.calls)
        since, reason = self._failures.get(key, (0.0, None))
        if reason is not None and now_s - since < _FAILURE_S:
            output.failure = reason
            self._failed.append(output)
            return output
        self._line.append((key, grammar, output))
        self._seat()
        return output

    def close(self, output: GrammarOutput) -> None:
        """Forget an output, wherever it stands."""
        self._line = [item for item in self._line if item[2] is not output]
        self._failed = [other for other in self._failed if other is not output]
        place, slot = self._where.pop(output, (None, 0))
        if place is None:
            return
        del place.outputs[slot]
        self._send(place, Close(slot))
        self._seat()

    def flush(self) -> None:
        """Send the tokens that outputs have taken."""
        told, self._told = self._told, set()
        for place in told:
            if self._places.get(place.key) is place:
                self._send(place)

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Take in what the processes said, waiting for a first word so long; return outputs that
        have failed since the last call. They are to be closed.
        """
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._hear_nursery()
            else:
                self._hear(key.data)
        self._end_overdue()
        self._seat()
        failed, self._failed = self._failed, []
        return failed

    def shut_down(self) -> None:
        """End all processes."""
        for place in list(self._places.values()):
            self._drop(place, "the server is ending")
        self._end_nursery()
        self._selector.close()

    def _before(self, grammar: Grammar) -> np.ndarray:
        """Return the mask of an output whose grammar has not begun."""
        free = self._all if grammar.may_end else self._free
        if grammar.barred is None:
            return free
        free = free.copy()
        free.view(np.uint8)[grammar.barred // 8] &= ~np.uint8(1 << grammar.barred % 8)
        return free

    # --- places

    def _seat(self) -> None:
        """Give outputs in line a process: one that has their grammar, or a new one."""
        waiting, self._line = self._line, []
        for item in waiting:
            key, grammar, output = item
            place = self._places.get(key) or self._start(key, grammar)
            if place is None:
                if output.failure is None:
                    self._line.append(item)
                continue
            self._places.move_to_end(key)
            self._slots += 1
            slot = self._slots
            place.outputs[slot] = output
            self._where[output] = place, slot
            output.accept = partial(self._accept, place, slot)
            self._send(place, Open(slot))

    def _start(self, key: bytes, grammar: Grammar) -> _Place | None:
        """Start a process for a grammar; None where there is no room, or it cannot be started."""
        if sum(not place.compiled for place in self._places.values()) >= COMPILING_AT_ONCE:
            return None
        if len(self._places) >= self._settings.processes and not self._make_room():
            return None
        try:
            if self._nursery is None:
                self._nursery = self._make_nursery(self._settings.nursery)
                self._selector.register(self._nursery, selectors.EVENT_READ, None)
            end = self._nursery.start()
        except OSError as fault:
            logger.warning("no process for a grammar: %s", fault)
            return None
        end.setblocking(False)
        channel: Channel[FromGrammar] = Channel(end, FromGrammar)
        place = _Place(key, channel, self._clock())
        self._places[key] = place
        self._selector.register(place.channel, selectors.EVENT_READ, place)
        settings = self._settings
        self._send(place, Compile(grammar, settings.limit_s, settings.memory_bytes))
        return place

    def _make_room(self) -> bool:
        """End the least recently used process that serves nobody; False if there is none."""
        idle = next((place for place in self._places.values() if not place.outputs), None)
        if idle is not None:
            self._drop(idle, "its place was wanted")
        return idle is not None

    def _drop(self, place: _Place, reason: str) -> None:
        """Take a process out, and fail what it served."""
        if self._places.get(place.key) is not place:
            return
        del self._places[place.key]
        self._selector.unregister(place.channel)
        place.channel.close()
        for output in place.outputs.values():
            output.failure = reason
            del self._where[output]
            self._failed.append(output)
        place.outputs.clear()

    def _blame(self, place: _Place, reason: str) -> None:
        """Drop a process for what its grammar did, and remember that for a while."""
        self._failures[place.key] = self._clock(), reason
        self._failures.move_to_end(place.key)
        if len(self._failures) > _REMEMBERED_FAILURES:
            self._failures.popitem(last=False)
        self._drop(place, reason)

    def _end_overdue(self) -> None:
        """Drop processes that never said a word although their own timer should have ended them."""
        patience = START_S + 2 * self._settings.limit_s
        for place in [p for p in self._places.values() if not p.compiled]:
            if self._clock() - place.started_s > patience:
                self._end_nursery()
                self._drop(place, "no process for the grammar came up")

    # --- messages

    def _accept(self, place: _Place, slot: int, token: int) -> None:
        place.channel.keep(Accept(slot, token))
        self._told.add(place)

    def _send(self, place: _Place, *messages: ToGrammar) -> None:
        try:
            place.channel.send(*messages)
        except OSError:
            # Its socket is readable, too, and says what happened.
            return
        self._watch(place)

    def _watch(self, place: _Place) -> None:
        """Hear of room in the socket while something waits to be sent."""
        events = selectors.EVENT_READ
        if place.channel.unsent:
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(place.channel).events != events:
            self._selector.modify(place.channel, events, place)

    def _hear(self, place: _Place) -> None:
        if self._places.get(place.key) is not place:
            return
        try:
            place.channel.flush()
            messages = place.channel.receive()
        except (EOFError, OSError):
            self._blame(place, self._obituary(place))
            return
        self._watch(place)
        for message in messages:
            match message:
                case Compiled():
                    self._compiled(place)
                case Mask(slot, bits):
                    output = place.outputs.get(slot)
                    if output is not None:
                        output.mask(np.frombuffer(bits, dtype="<i4"))
                case Failed(reason):
                    self._blame(place, reason)
                    return

    def _compiled(self, place: _Place) -> None:
        place.compiled, now_s = True, self._clock()
        self.compilations.observe(now_s - place.started_s)
        for output in place.outputs.values():
            output.compile_s = now_s - output.opened_s

    def _obituary(self, place: _Place) -> str:
        what = "matching" if place.compiled else "compiling"
        return (
            f"{what} the grammar took more than {self._settings.limit_s:g} s, too much memory, "
            "or too deep a recursion"
        )

    def _hear_nursery(self) -> None:
        assert self._nursery is not None
        reason = self._nursery.failure()
        if reason is None:
            return
        logger.warning("no more processes for grammars: %s", reason)
        self._end_nursery()
        for place in [p for p in self._places.values() if not p.compiled]:
            self._drop(place, reason)
        for _, _, output in self._line:
            output.failure = reason
            self._failed.append(output)
        self._line = []

    def _end_nursery(self) -> None:
        if self._nursery is not None:
            self._selector.unregister(self._nursery)
            self._nursery.close()
            self._nursery = None


def _not_placed(token: int) -> None:
    raise AssertionError(f"token {token} was sampled without a mask")


def _all_but(vocab_size: int, token_ids: list[int]) -> np.ndarray:
    """Return the mask of all tokens but these."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[:vocab_size] = 1
    bits[[token for token in token_ids if token < vocab_size]] = 0
    return np.packbits(bits, bitorder="little").view("<i4")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
