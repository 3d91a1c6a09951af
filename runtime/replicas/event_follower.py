"""Follows the cache events of one server: its index is exact, or marked as not current.

    SUB     [topic, number, payload]          live batches, numbered without a gap
    DEALER  [number] -> batches from it on    a replay, after a gap and at the start
            [b"snapshot"] -> all blocks       where the gap is older than what the server keeps

While batches are missing the index is not `current`, and nothing is routed by it. A subscription
takes effect some time after it was made, and when the last batch before a pause is lost no later
one shows the gap: so after a silence the follower requests a replay of all later batches. Numbers
begin again with each publisher: another one, at the same address too, needs another follower.
"""

import logging
import threading
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import zmq

from runtime.scheduler.kv_event_wire import AllBlocksCleared, Batch
from runtime.scheduler.kv_publisher import END_OF_REPLAY, SNAPSHOT

__all__ = ["EventFollower", "EventSource", "IndexOwner"]

logger = logging.getLogger("umbra.replicas")

_POLL_MS = 200
# After so long without a batch the follower requests a replay.
_SILENCE_POLLS = 5
# A replay that has not arrived by then is requested again.
_REPLAY_POLLS = 25
_MOST_WAITING = 100_000


class EventSource(NamedTuple):
    """Where a server publishes: two endpoints, and the topic of its messages."""

    endpoint: str
    replay_endpoint: str
    topic: str = ""


class IndexOwner(Protocol):
    """Owner of the indexes that followers keep: `Board`, for one."""

    def index(self, name: str) -> Any:
        """Return a context manager that yields the `BlockIndex` of a server, to be changed."""
        ...

    def cleared(self, name: str) -> None:
        """Note that a server's cache was emptied."""
        ...


class EventFollower:
    """A thread that reads one server's events from construction on, until `close`."""

    def __init__(self, name: str, source: EventSource, owner: IndexOwner) -> None:
        self._name = name
        self._owner = owner
        self._decoder = msgspec.msgpack.Decoder(Batch)
        self._next = 0
        self._awaited: Literal["replay", "snapshot", "rest"] | None = None
        self._came: list[tuple[int, bytes]] = []
        self._idle_polls = 0
        self._stop = threading.Event()
        self._context = zmq.Context(io_threads=1)
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, _MOST_WAITING)
        self._live.setsockopt_string(zmq.SUBSCRIBE, source.topic)
        self._live.connect(source.endpoint)
        self._replay_endpoint = source.replay_endpoint
        self._replay = self._dial()
        self._thread = threading.Thread(target=self._run, name=f"events {name}", daemon=True)
        self._thread.start()

    def _dial(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, _MOST_WAITING)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._replay_endpoint)
        return socket

    def close(self, *, wait: bool = True) -> None:
        """End the thread and its sockets, and `wait` for it; doing it again does nothing."""
        self._stop.set()
        if wait:
            self._thread.join()

    # --- the thread

    def _run(self) -> None:
        try:
            self._ask()
            while not self._stop.is_set():
                self._turn()
        except Exception:
            # The index is out of date from now on: nothing may be routed by it.
            logger.exception("stopped following the cache events of %s", self._name)
            with self._owner.index(self._name) as index:
                index.current = False
        finally:
            self._live.close(linger=0)
            self._replay.close(linger=0)
            self._context.term()

    def _turn(self) -> None:
        poller = zmq.Poller()
        poller.register(self._live, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        ready = dict(poller.poll(_POLL_MS))
        if self._replay in ready:
            self._read_replay()
        # While a replay is under way live batches wait: they come after it.
        if self._live in ready and self._awaited is None:
            self._read_live()
        elif not ready:
            self._idle_polls += 1
            limit = _SILENCE_POLLS if self._awaited is None else _REPLAY_POLLS
            if self._idle_polls >= limit:
                self._ask_again()
        if self._live in ready and self._awaited is not None:
            self._stop.wait(0.005)

    def _ask_again(self) -> None:
        if self._awaited is not None:
            # The answer to an old question must not be taken for that to a new one.
            self._replay.close(linger=0)
            self._replay = self._dial()
            self._set_current(False)
        self._ask()

    def _ask(self, kind: Literal["replay", "rest"] = "replay") -> None:
        self._awaited, self._came, self._idle_polls = kind, [], 0
        self._replay.send_multipart((b"", self._next.to_bytes(8, "big")))

    def _ask_snapshot(self) -> None:
        self._awaited, self._came, self._idle_polls = "snapshot", [], 0
        self._replay.send_multipart((b"", SNAPSHOT))

    def _read_live(self) -> None:
        with suppress(zmq.Again):
            while True:
                _, number, payload = self._live.recv_multipart(zmq.NOBLOCK)
                self._idle_polls = 0
                at = int.from_bytes(number, "big")
                if at == self._next:
                    self._apply([(at, payload)])
                elif at > self._next:
                    self._set_current(False)
                    self._ask()
                    return

    def _read_replay(self) -> None:
        with suppress(zmq.Again):
            while True:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
                self._idle_polls = 0
                if len(frames) != 4:
                    continue
                _, _, number, payload = frames
                if number != END_OF_REPLAY:
                    self._came.append((int.from_bytes(number, "big"), payload))
                elif self._awaited == "replay":
                    self._take_replay()
                elif self._awaited == "snapshot":
                    self._take_snapshot()
                elif self._awaited == "rest":
                    self._take_rest()

    def _take_replay(self) -> None:
        """Apply what a replay brought, or ask for a snapshot where it has a gap."""
        came = self._came
        numbers = [number for number, _ in came]
        if numbers != list(range(self._next, self._next + len(came))):
            self._set_current(False)
            self._ask_snapshot()
            return
        self._awaited, self._came = None, []
        self._apply(came)
        self._set_current(True)

    def _take_snapshot(self) -> None:
        """Begin anew from a snapshot; where the server has none, from nothing."""
        came, self._came = self._came, []
        if not came:
            logger.warning("%s has sent no snapshot of its cache", self._name)
            self._forget()
            self._ask("rest")
            return
        batches = [self._decoder.decode(payload) for _, payload in came]
        with self._owner.index(self._name) as index:
            index.replace(batches)
        self._next = came[-1][0] + 1
        # What came after the snapshot may have been lost, too.
        self._ask()

    def _take_rest(self) -> None:
        """Apply the batches since the last gap: blocks from before it count as not stored."""
        came, self._awaited, self._came = self._came, None, []
        first = len(came)
        while first and (first == len(came) or came[first - 1][0] + 1 == came[first][0]):
            first -= 1
        if came:
            self._next = came[first][0]
            self._apply(came[first:])
        self._set_current(True)

    def _apply(self, came: list[tuple[int, bytes]]) -> None:
        batches = [self._decoder.decode(payload) for _, payload in came]
        with self._owner.index(self._name) as index:
            for batch in batches:
                index.apply(batch)
        self._next += len(came)
        if any(isinstance(e, AllBlocksCleared) for batch in batches for e in batch.events):
            self._owner.cleared(self._name)

    def _set_current(self, current: bool) -> None:
        with self._owner.index(self._name) as index:
            index.current = current

    def _forget(self) -> None:
        with self._owner.index(self._name) as index:
            index.clear()
            index.current = False
        self._owner.cleared(self._name)
