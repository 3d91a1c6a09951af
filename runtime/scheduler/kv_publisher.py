"""Sends batches of cache events to whoever subscribed, and old ones again to who asks.

    scheduler --publish--> queue --> thread --PUB--> [topic, number, payload]
                                       ^----ROUTER-- [number to begin with] or [b"snapshot"]

The thread alone touches the network. Nobody waits for a subscriber: what does not fit into its
queue is dropped, and so are batches that find the thread's own queue full. Both leave a gap in the
numbers (8 bytes, big-endian, from 0 at start), by which a subscriber knows to ask for a replay.
Where the replay begins too late it asks for a snapshot: batches that build up all that is stored,
each under the number of the last batch that the snapshot covers. There is none where batches were
lost before they were sent.

Source: `ZmqEventPublisher` of vLLM 0.33, for the frames.
"""

import logging
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import zmq

from runtime.errors import ConfigError
from runtime.kv_events_config import FLAG, KvEventsConfig, host_and_port, read_hash_key
from runtime.scheduler.kv_event_wire import Event, encode_batch
from runtime.scheduler.kv_events import EventSink
from runtime.scheduler.kv_snapshot import StoredBlocks

logger = logging.getLogger("umbra.kv_events")

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
# As a number no batch will ever have it: who knows of no snapshots answers with an empty replay.
SNAPSHOT = b"snapshot"
_SNAPSHOT_BLOCKS = 256
_WAKE = "inproc://wake"
# Subscribers send topics and numbers, nothing larger.
_MAX_INCOMING_BYTES = 4096
# What was sent may still leave for so long when the server stops.
_LINGER_MS = 200


class _Batch(NamedTuple):
    number: int
    time_s: float
    events: list[Event]
    rank: int


class _OfRank(NamedTuple):
    """Where one replica publishes."""

    publisher: "KvEventPublisher"
    rank: int

    @property
    def hash_key(self) -> bytes | None:
        """Of readers that compute hashes of namespaces."""
        return self.publisher.hash_key

    def publish(self, events: list[Event], *, time_s: float) -> None:
        """Queue a batch of this replica."""
        self.publisher.publish(events, time_s=time_s, rank=self.rank)


class KvEventPublisher:
    """The sockets behind `--kv-events-config`, and the thread that serves them.

    endpoint         where the PUB socket is, with the port that was really taken
    replay_endpoint  where the ROUTER socket is, or None
    hash_key         of readers that compute hashes of namespaces, or None
    `publish` and `close` belong to one thread.
    """

    def __init__(self, config: KvEventsConfig) -> None:
        """Open the sockets and start the thread. Raises ConfigError for what cannot be opened."""
        self._topic = config.topic.encode()
        self.hash_key = read_hash_key(config)
        self._queue: deque[_Batch | None] = deque()
        self._most_queued = config.max_queue_size
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._next = 0
        self._stored = StoredBlocks()
        self._last = -1
        self._complete = True
        self.dropped = 0
        self._context = zmq.Context(io_threads=1)
        try:
            self._open(config)
        except (zmq.ZMQError, ConfigError):
            self._context.destroy(linger=0)
            raise
        if config.leaves_the_machine:
            logger.warning(
                "cache events leave this machine: who subscribes reads the tokens of all prompts"
            )
        logger.info("cache events at %s, replay at %s", self.endpoint, self.replay_endpoint)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _open(self, config: KvEventsConfig) -> None:
        # No limits: a call that was dropped would leave a batch lying. They are as many as batches.
        self._incoming = self._context.socket(zmq.PULL)
        self._incoming.setsockopt(zmq.RCVHWM, 0)
        self._incoming.bind(_WAKE)
        self._waker = self._context.socket(zmq.PUSH)
        self._waker.setsockopt(zmq.SNDHWM, 0)
        self._waker.connect(_WAKE)
        self._pub = self._socket(zmq.PUB, config.hwm)
        self.endpoint = _open_at(self._pub, config.endpoint, listens=config.listens)
        self.replay_endpoint: str | None = None
        self._router: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            # A reader acknowledges in halves of the limit: twice the size holds a whole replay.
            self._router = self._socket(zmq.ROUTER, 2 * (config.buffer_steps + 1))
            self.replay_endpoint = _open_at(self._router, config.replay_endpoint, listens=True)

    def _socket(self, kind: int, limit: int) -> "zmq.Socket[Any]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, limit)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_INCOMING_BYTES)
        return socket

    def of_rank(self, rank: int) -> EventSink:
        """Return where the replica of a rank publishes; numbers go on through those of all."""
        return _OfRank(self, rank)

    def publish(self, events: list[Event], *, time_s: float, rank: int = 0) -> None:
        """Queue a batch under the next number; never blocks. The list is the publisher's now."""
        number, self._next = self._next, self._next + 1
        if len(self._queue) >= self._most_queued:
            if not self.dropped:
                logger.warning("the cache event queue is full: batches from %d are lost", number)
            self.dropped += 1
            return
        self._queue.append(_Batch(number, time_s, events, rank))
        self._waker.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Send what is queued, end thread and sockets; doing it again does nothing."""
        if self._waker.closed:
            return
        self._queue.append(None)
        self._waker.send(b"", zmq.NOBLOCK)
        self._thread.join()
        self._waker.close(linger=0)
        self._context.term()
        if self.dropped:
            logger.warning("%d batches of cache events were lost", self.dropped)

    # --- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        sockets = [self._incoming] + ([] if self._router is None else [self._router])
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._incoming in ready:
                    self._incoming.recv()
                if not self._send_queued():
                    return
                if self._router in ready:
                    self._answer()
        finally:
            for socket in (*sockets, self._pub):
                socket.close()

    def _send_queued(self) -> bool:
        """Send all that is queued; False once that was the last."""
        while self._queue:
            batch = self._queue.popleft()
            if batch is None:
                return False
            number, payload = batch.number.to_bytes(8, "big"), encode_batch(*batch[1:])
            self._complete &= batch.number == self._last + 1
            self._last = batch.number
            self._pub.send_multipart((self._topic, number, payload), zmq.NOBLOCK)
            if self._router is not None:
                self._kept.append((number, payload))
                self._stored.apply(batch.events, batch.rank)
        return True

    def _answer(self) -> None:
        """Send one client all batches from the number it names on that are still kept."""
        assert self._router is not None
        client, *frames = self._router.recv_multipart()
        if len(frames) != 2 or frames[0] or len(frames[1]) != 8:
            logger.warning("a malformed replay request was ignored")
            return
        if frames[1] == SNAPSHOT:
            self._send_snapshot(client)
            return
        # Big-endian numbers of one length are in the order of their bytes.
        for number, payload in self._kept:
            if number >= frames[1]:
                self._router.send_multipart((client, b"", self._topic, number, payload))
        self._router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

    def _send_snapshot(self, client: bytes) -> None:
        """Send one client all blocks that are stored after the last batch."""
        assert self._router is not None
        if self._complete and self._last >= 0:
            number = self._last.to_bytes(8, "big")
            for rank, events in self._stored.batches(_SNAPSHOT_BLOCKS):
                payload = encode_batch(time.time(), events, rank)
                self._router.send_multipart((client, b"", self._topic, number, payload))
        self._router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))


def _open_at(socket: "zmq.Socket[Any]", endpoint: str, *, listens: bool) -> str:
    """Bind or connect; return the endpoint with the port taken. Raises ConfigError."""
    host, port = host_and_port(endpoint)
    if host.startswith("["):
        socket.setsockopt(zmq.IPV6, 1)
    try:
        if not listens:
            socket.connect(endpoint)
            return endpoint
        # Names are for connecting: a socket binds to addresses.
        socket.bind(f"tcp://127.0.0.1:{port}" if host == "localhost" else endpoint)
    except zmq.ZMQError as fault:
        doing = "listen on" if listens else "connect to"
        raise ConfigError(f"{FLAG}: cannot {doing} {endpoint}: {fault.strerror}") from fault
    if not host:
        return endpoint
    taken = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    return f"tcp://{host}:{taken}"
