"""Typed ZMQ sockets between the API process and the scheduler.

Two one-way pipes over ipc:// in a private directory: whoever receives binds, whoever sends
connects, so that nothing sent before the peer is up is lost. Only the unions of
`runtime.messages` pass; anything else that arrives is logged and dropped. Queues are unbounded
because the API process bounds the requests in flight, and a sender that blocked would stop a
whole process for the sake of the other one.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import zmq
import zmq.asyncio

from runtime.messages import FromScheduler, ToScheduler
from runtime.private_folder import private_folder

logger = logging.getLogger("umbra.ipc")

# sun_path of a Unix socket holds 108 bytes, the last one a NUL.
_MAX_SOCKET_PATH = 107
_NAMES = ("to_scheduler", "from_scheduler")
# Messages that are taken in before their readers have a turn.
_MOST_WAITING = 64
# And bytes of these: with log-probabilities a message has a megabyte.
_MOST_WAITING_BYTES = 1 << 18
_RECONNECT_MS = 20

Message = TypeVar("Message")


class Socket(Protocol):
    """The scheduler's end of the message sockets: `SchedulerSocket`, or what a test has for it."""

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return the messages that wait; [] when none came within the timeout."""
        ...

    def send(self, message: FromScheduler) -> None:
        """Send without blocking."""
        ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two pipes are: ZMQ endpoints."""

    to_scheduler: str
    from_scheduler: str

    @property
    def folder(self) -> str:
        """The directory that both are in, which only this user can enter."""
        return str(Path(self.to_scheduler.removeprefix("ipc://")).parent)


@contextlib.contextmanager
def private_addresses() -> Iterator[Addresses]:
    """Make a directory that only this user can enter, and remove it at the end.

    A TMPDIR too long for a socket path is passed over for /tmp. Raises RuntimeFault where no
    temporary folder can be written.
    """
    longest = _MAX_SOCKET_PATH - 1 - max(map(len, _NAMES))
    with private_folder(longest) as folder:
        to_scheduler, from_scheduler = (f"ipc://{folder}/{name}" for name in _NAMES)
        yield Addresses(to_scheduler, from_scheduler)


class Codec(Generic[Message]):
    """MessagePack: messages of one union in, those of the other one out."""

    def __init__(self, union: object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]

    def encode(self, message: FromScheduler | ToScheduler) -> bytes:
        """Return the bytes of a message."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Message | None:
        """Return the message, or None (and a log line) for anything else."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            logger.warning("dropped a malformed message of %d bytes: %s", len(data), fault)
            return None


def _open(socket: "zmq.Socket[Any]", address: str, *, bind: bool) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    # Either end may be there first; the other one is found soon after it is.
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if bind:
        socket.bind(address)
    else:
        socket.connect(address)


class SchedulerSocket:
    """The scheduler's ends of both pipes.

    `receive` belongs to one thread; `send` may be called from any (the heartbeat has its own).
    """

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context(io_threads=1)
        self._inbound = self._context.socket(zmq.PULL)
        self._outbound = self._context.socket(zmq.PUSH)
        _open(self._inbound, addresses.to_scheduler, bind=True)
        _open(self._outbound, addresses.from_scheduler, bind=False)
        self._codec = Codec[ToScheduler](ToScheduler)
        self._sending = threading.Lock()

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Wait up to `timeout_s` for a message, and return all that wait by then, in order."""
        messages: list[ToScheduler] = []
        if not self._inbound.poll(int(timeout_s * 1000)):
            return messages
        while True:
            try:
                data = self._inbound.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            message = self._codec.decode(data)
            if message is not None:
                messages.append(message)

    def send(self, message: FromScheduler) -> None:
        """Send without blocking. After `close` this does nothing."""
        data = self._codec.encode(message)
        with self._sending:
            if not self._outbound.closed:
                self._outbound.send(data)

    def close(self, *, linger_s: float = 1.0) -> None:
        """Close both ends; what was sent has `linger_s` to leave."""
        with self._sending:
            self._outbound.close(linger=int(linger_s * 1000))
        self._inbound.close(linger=0)
        self._context.term()


class ManagerSocket:
    """The API process's ends of both pipes; belongs to one event loop."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._inbound = self._context.socket(zmq.PULL)
        # The same without futures: it says at once whether a message waits.
        self._waiting = zmq.Socket.shadow(self._inbound)
        # A plain socket: with an unbounded queue sending never waits, so it needs no future.
        self._outbound = zmq.Context(self._context).socket(zmq.PUSH)
        _open(self._inbound, addresses.from_scheduler, bind=True)
        _open(self._outbound, addresses.to_scheduler, bind=False)
        self._codec = Codec[FromScheduler](FromScheduler)

    async def receive(self) -> FromScheduler:
        """Wait for the next message. Raises zmq.ZMQError once closed."""
        while True:
            message = self._codec.decode(await self._inbound.recv())
            if message is not None:
                return message
            await asyncio.sleep(0)

    def waiting(self) -> list[FromScheduler]:
        """Return messages that wait by now, in order, without waiting for one.

        Not all of them where that would hold up the readers of others.
        """
        messages: list[FromScheduler] = []
        size = 0
        while len(messages) < _MOST_WAITING and size < _MOST_WAITING_BYTES:
            try:
                data = self._waiting.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            size += len(data)
            message = self._codec.decode(data)
            if message is not None:
                messages.append(message)
        return messages

    def send(self, message: ToScheduler) -> None:
        """Queue a message for the scheduler; never blocks. After `close` this does nothing."""
        if not self._outbound.closed:
            self._outbound.send(self._codec.encode(message), zmq.NOBLOCK)

    def close(self, *, linger_s: float = 0.0) -> None:
        """Close both ends; what was sent has `linger_s` to leave."""
        self._outbound.close(linger=int(linger_s * 1000))
        self._inbound.close(linger=0)
        self._context.term()
