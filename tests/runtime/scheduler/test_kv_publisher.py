"""Real sockets on loopback: what subscribers get, what replays give, and that nobody waits."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

import runtime.scheduler.kv_publisher as kv_publisher
from runtime.errors import ConfigError
from runtime.kv_events_config import KvEventsConfig
from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored, encode_batch
from runtime.scheduler.kv_publisher import KvEventPublisher

ANYWHERE = "tcp://127.0.0.1:0"
RECEIVE_MS = 60_000


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def settings(**keys: Any) -> KvEventsConfig:
    wanted: dict[str, Any] = {"endpoint": ANYWHERE, **keys}
    return KvEventsConfig(**wanted)


@contextmanager
def publishing(**keys: Any) -> Iterator[KvEventPublisher]:
    """Run a publisher, on any port unless told."""
    publisher = KvEventPublisher(settings(**keys))
    try:
        yield publisher
    finally:
        publisher.close()


class Readers:
    """The other side's sockets."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self._opened: list[zmq.Socket[Any]] = []

    def open(self, kind: int, endpoint: str = "") -> "zmq.Socket[Any]":
        """Return a socket that waits long enough, connected if told where."""
        made = self.context.socket(kind)
        self._opened.append(made)
        made.setsockopt(zmq.RCVTIMEO, RECEIVE_MS)
        if endpoint:
            made.connect(endpoint)
        return made

    def subscribe(
        self, publisher: KvEventPublisher, topic: str = ""
    ) -> tuple["zmq.Socket[Any]", int]:
        """Return a socket that gets everything from the number returned on.

        A subscription takes its time, and a short queue loses what comes in bursts: batches are
        published until the latest one has come.
        """
        made = self.open(zmq.SUB, publisher.endpoint)
        made.setsockopt_string(zmq.SUBSCRIBE, topic)
        sent = 0
        latest = -1
        while latest < sent - 1 or not sent:
            publisher.publish([Cleared()], time_s=0.0)
            sent += 1
            while latest < sent - 1 and made.poll(10):
                latest = int.from_bytes(made.recv_multipart()[1], "big")
        return made, sent

    def ask(self, publisher: KvEventPublisher) -> "zmq.Socket[Any]":
        """Return a socket for replays."""
        assert publisher.replay_endpoint is not None
        return self.open(zmq.DEALER, publisher.replay_endpoint)

    def close(self) -> None:
        """Close everything."""
        for opened in self._opened:
            opened.close(linger=0)
        self.context.term()


@pytest.fixture
def readers() -> Iterator[Readers]:
    """The other side."""
    readers = Readers()
    yield readers
    readers.close()


def removed(value: int) -> list[Event]:
    return [Removed([value])]


def test_a_subscriber_gets_topic_number_and_payload(readers: Readers) -> None:
    with publishing(topic="kv@pod@model") as publisher:
        reader, first = readers.subscribe(publisher, "kv@")
        events: list[Event] = [Stored([9], None, np.ones((1, 4), np.int32)), Removed([9])]

        for time_s in (1.0, 2.0):
            publisher.publish(list(events), time_s=time_s)

        for offset in range(2):
            assert reader.recv_multipart() == [
                b"kv@pod@model",
                number(first + offset),
                encode_batch(1.0 + offset, events),
            ]


def test_replicas_publish_under_their_ranks_and_numbers_in_common(readers: Readers) -> None:
    with publishing() as publisher:
        reader, first = readers.subscribe(publisher)

        for rank in (1, 0):
            publisher.of_rank(rank).publish(removed(rank), time_s=1.0)

        for offset, rank in enumerate((1, 0)):
            _, counted, payload = reader.recv_multipart()
            assert counted == number(first + offset)
            assert payload == encode_batch(1.0, removed(rank), rank)
            assert msgspec.msgpack.decode(payload)[2] == rank


def test_the_topic_is_empty_unless_given(readers: Readers) -> None:
    with publishing() as publisher:
        reader, first = readers.subscribe(publisher)
        publisher.publish(removed(1), time_s=0.0)

        assert reader.recv_multipart()[:2] == [b"", number(first)]


def test_a_replay_gives_the_kept_batches_from_a_number_on_and_an_end(
    readers: Readers,
) -> None:
    with publishing(replay_endpoint=ANYWHERE, buffer_steps=4, topic="t") as publisher:
        for value in range(6):
            publisher.publish(removed(value), time_s=float(value))
        asking = readers.ask(publisher)

        for start, expected in ((0, [2, 3, 4, 5]), (4, [4, 5]), (99, [])):
            asking.send_multipart([b"", number(start)])
            for value in expected:
                payload = encode_batch(float(value), removed(value))
                assert asking.recv_multipart() == [b"", b"t", number(value), payload]
            assert asking.recv_multipart() == [b"", b"", b"\xff" * 8, b""]


def test_a_whole_replay_waits_for_a_reader_who_is_late(readers: Readers) -> None:
    count = 3000
    with publishing(replay_endpoint=ANYWHERE) as publisher:
        for value in range(count):
            publisher.publish(removed(value), time_s=0.0)
        asking = readers.ask(publisher)
        asking.send_multipart([b"", number(0)])

        numbers = [asking.recv_multipart()[2] for _ in range(count + 1)]

    assert numbers == [*map(number, range(count)), kv_publisher.END_OF_REPLAY]


def test_a_snapshot_has_what_is_stored_now_under_the_last_number(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "_SNAPSHOT_BLOCKS", 2)
    tokens = np.arange(8, dtype=np.int32).reshape(2, 4)
    with publishing(replay_endpoint=ANYWHERE, buffer_steps=1, topic="t") as publisher:
        asking = readers.ask(publisher)
        asking.send_multipart([b"", kv_publisher.SNAPSHOT])
        assert asking.recv_multipart() == [b"", b"", kv_publisher.END_OF_REPLAY, b""]

        publisher.publish([Stored([1, 2], None, tokens)], time_s=0.0)
        publisher.publish([Stored([3], 2, tokens[:1]), Stored([4], 3, tokens[:1])], time_s=0.0)
        publisher.publish(removed(4), time_s=0.0)
        asking.send_multipart([b"", kv_publisher.SNAPSHOT])
        frames = [asking.recv_multipart() for _ in range(3)]

    assert [frame[:3] for frame in frames[:2]] == [[b"", b"t", number(2)]] * 2
    assert frames[2][2] == kv_publisher.END_OF_REPLAY
    events = [e for frame in frames[:2] for e in msgspec.msgpack.decode(frame[3])[1]]
    assert [event["type"] for event in events] == ["AllBlocksCleared"] + ["BlockStored"] * 3
    told = [(event["block_hashes"], event["parent_block_hash"]) for event in events[1:]]
    assert told == [([1], None), ([2], 1), ([3], 2)]
    assert [event["token_ids"] for event in events[1:]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 2, 3],
    ]


def test_who_lost_a_batch_before_sending_it_gives_no_snapshot(readers: Readers) -> None:
    with publishing(replay_endpoint=ANYWHERE) as publisher:
        publisher.publish([Cleared()], time_s=0.0)
        publisher._next += 1
        publisher.publish([Cleared()], time_s=0.0)
        asking = readers.ask(publisher)
        asking.send_multipart([b"", kv_publisher.SNAPSHOT])

        assert asking.recv_multipart()[2] == kv_publisher.END_OF_REPLAY


@pytest.mark.parametrize(
    "frames", [[b"x"], [b"", b"short"], [b"", number(0), b""], [b"x", number(0)]]
)
def test_a_malformed_request_harms_nobody(
    readers: Readers, frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with publishing(replay_endpoint=ANYWHERE) as publisher:
        asking = readers.ask(publisher)
        asking.send_multipart(frames)
        asking.send_multipart([b"", number(0)])

        assert asking.recv_multipart() == [b"", b"", b"\xff" * 8, b""]
    assert "malformed replay request" in caplog.text


def test_a_subscriber_who_never_reads_loses_batches_and_holds_nobody_up(
    readers: Readers,
) -> None:
    count = 2000
    with publishing(hwm=1, replay_endpoint=ANYWHERE, buffer_steps=10) as publisher:
        asleep = readers.open(zmq.SUB)
        for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.RCVTIMEO, 0)):
            asleep.setsockopt(option, value)
        asleep.setsockopt(zmq.SUBSCRIBE, b"")
        asleep.connect(publisher.endpoint)
        _, first = readers.subscribe(publisher)
        while not asleep.poll(10):
            publisher.publish([Cleared()], time_s=0.0)
            first += 1
        page = np.zeros((1, 65536), np.int32)
        for _ in range(count):
            publisher.publish([Stored([7], None, page)], time_s=0.0)

        # Everything was sent, which a replay behind it proves; the sleeper got little of it.
        asking = readers.ask(publisher)
        asking.send_multipart([b"", number(first + count - 1)])
        assert asking.recv_multipart()[2] == number(first + count - 1)
        got = 0
        while asleep.poll(100):
            asleep.recv_multipart()
            got += 1
        assert 0 < got < 500  # of zmq's own limit it would get a thousand


def test_a_full_queue_loses_batches_and_leaves_a_gap_in_the_numbers(
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def encode(time_s: float, events: list[Event], rank: int) -> bytes:
        if events == removed(0):
            stuck.set()
            assert go_on.wait(60)
        return encode_batch(time_s, events, rank)

    with publishing(max_queue_size=2, replay_endpoint=ANYWHERE) as publisher:
        monkeypatch.setattr(kv_publisher, "encode_batch", encode)
        publisher.publish(removed(0), time_s=0.0)
        assert stuck.wait(60)
        for value in range(1, 6):
            publisher.publish(removed(value), time_s=0.0)
        go_on.set()
        asking = readers.ask(publisher)
        numbers: list[bytes] = []
        while number(6) not in numbers:
            # The queue has room again at some time.
            if numbers[-1:] == [kv_publisher.END_OF_REPLAY]:
                publisher.publish(removed(6), time_s=0.0)
            asking.send_multipart([b"", number(0)])
            numbers = [asking.recv_multipart()[2]]
            while numbers[-1] != kv_publisher.END_OF_REPLAY:
                numbers.append(asking.recv_multipart()[2])

        assert numbers[:4] == [number(0), number(1), number(2), number(6)]
        assert publisher.dropped == 3
    assert "batches from 3 are lost" in caplog.text
    assert "3 batches of cache events were lost" in caplog.text


def test_what_was_published_before_the_end_is_sent(readers: Readers) -> None:
    with publishing() as publisher:
        reader, first = readers.subscribe(publisher)
        for value in range(50):
            publisher.publish(removed(value), time_s=0.0)

    numbers = [int.from_bytes(reader.recv_multipart()[1], "big") for _ in range(50)]
    assert numbers == list(range(first, first + 50))


def test_closing_ends_the_thread_and_frees_the_port() -> None:
    with publishing() as publisher:
        endpoint = publisher.endpoint
    publisher.close()

    assert not [t for t in threading.enumerate() if t.name == "kv-events"]
    with publishing(endpoint=endpoint) as again:
        assert again.endpoint == endpoint


@pytest.mark.parametrize("key", ["endpoint", "replay_endpoint"])
def test_a_port_in_use_is_told_and_nothing_stays_open(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(ConfigError, match=f"cannot listen on {endpoint}: Address already"):
            KvEventPublisher(settings(**{key: endpoint}))

    assert not [t for t in threading.enumerate() if t.name == "kv-events"]


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on tcp://192\.0\.2\.7:5557"):
        KvEventPublisher(KvEventsConfig(endpoint="tcp://192.0.2.7:5557", bind=True))


def test_the_port_taken_is_told_under_the_name_given() -> None:
    for host in ("localhost", "*"):
        with publishing(endpoint=f"tcp://{host}:0") as publisher:
            stem, _, port = publisher.endpoint.rpartition(":")
            assert stem == f"tcp://{host}"
            assert int(port) > 0


def test_who_listens_beyond_this_machine_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    with publishing():
        pass
    assert "leave this machine" not in caplog.text

    with publishing(endpoint="tcp://*:0"):
        pass
    assert "leave this machine" in caplog.text


def test_a_subscriber_may_be_the_one_who_listens(readers: Readers, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    reader = readers.open(zmq.SUB)
    reader.setsockopt(zmq.SUBSCRIBE, b"")
    reader.bind(endpoint)
    with publishing(endpoint=endpoint, bind=False) as publisher:
        while not reader.poll(10):
            publisher.publish([Cleared()], time_s=0.0)

        payload = reader.recv_multipart()[2]
    assert msgspec.msgpack.decode(payload)[1:] == [[{"type": "AllBlocksCleared"}], 0]
