"""A follower's index against real publishers: live, late, after a gap, after a loss."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import runtime.replicas.event_follower as event_follower
from runtime.kv_events_config import KvEventsConfig
from runtime.replicas.block_index import BlockIndex
from runtime.replicas.event_follower import EventFollower, EventSource
from runtime.scheduler.kv_event_wire import Cleared, Removed, Stored
from runtime.scheduler.kv_publisher import KvEventPublisher

ANYWHERE = "tcp://127.0.0.1:0"
LIMIT_S = 30.0


class Owner:
    """Keeps one index, and what became of it.

    history  `current` after each change of the index
    """

    def __init__(self) -> None:
        self.blocks = BlockIndex()
        self.clears = 0
        self.history: list[bool] = []
        self._lock = threading.Lock()

    @contextmanager
    def index(self, name: str) -> Iterator[BlockIndex]:
        assert name == "one"
        with self._lock:
            yield self.blocks
            self.history.append(self.blocks.current)

    def cleared(self, name: str) -> None:
        self.clears += 1

    def wait(self, condition: Callable[[BlockIndex], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with self._lock:
                if self.blocks.current and condition(self.blocks):
                    return
            time.sleep(0.005)
        raise AssertionError("the index did not become that")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_follower, "_POLL_MS", 10)


@contextmanager
def publishing(steps: int = 100) -> Iterator[KvEventPublisher]:
    config = KvEventsConfig(endpoint=ANYWHERE, replay_endpoint=ANYWHERE, buffer_steps=steps)
    publisher = KvEventPublisher(config)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def following(publisher: KvEventPublisher) -> Iterator[Owner]:
    owner = Owner()
    assert publisher.replay_endpoint is not None
    source = EventSource(publisher.endpoint, publisher.replay_endpoint)
    follower = EventFollower("one", source, owner)
    try:
        yield owner
    finally:
        follower.close()


def store(publisher: KvEventPublisher, *hashes: int) -> None:
    tokens = np.zeros((len(hashes), 4), np.int32)
    publisher.publish([Stored(list(hashes), None, tokens)], time_s=1.0)


def is_exactly(*hashes: int) -> Callable[[BlockIndex], bool]:
    return lambda index: len(index) == len(hashes) and all(h in index for h in hashes)


def test_what_was_before_and_what_comes_is_known() -> None:
    with publishing() as publisher:
        store(publisher, 1, 2)
        with following(publisher) as owner:
            owner.wait(is_exactly(1, 2))
            store(publisher, 3)
            publisher.publish([Removed([2])], time_s=1.0)
            owner.wait(is_exactly(1, 3))
            publisher.publish([Cleared()], time_s=1.0)
            owner.wait(is_exactly())
            assert owner.clears == 1


def test_a_gap_is_filled_by_a_replay() -> None:
    with publishing() as publisher, following(publisher) as owner:
        store(publisher, 1)
        owner.wait(is_exactly(1))
        publisher._topic, kept = b"\xff elsewhere", publisher._topic  # a batch that is lost
        store(publisher, 2)
        while publisher._queue:
            time.sleep(0.001)
        time.sleep(0.01)
        publisher._topic = kept
        owner.history.clear()
        store(publisher, 3)
        owner.wait(is_exactly(1, 2, 3))


def test_what_is_older_than_the_replays_comes_as_a_snapshot() -> None:
    with publishing(steps=2) as publisher:
        for hashed in range(1, 10):
            store(publisher, hashed)
        publisher.publish([Removed([4])], time_s=1.0)
        with following(publisher) as owner:
            owner.wait(is_exactly(1, 2, 3, 5, 6, 7, 8, 9))
            assert True not in owner.history[:-1]
            store(publisher, 10)
            owner.wait(is_exactly(1, 2, 3, 5, 6, 7, 8, 9, 10))


def test_what_a_publisher_has_lost_itself_counts_as_not_stored() -> None:
    with publishing() as publisher:
        store(publisher, 1)
        publisher._next += 1  # a batch that found the queue full
        store(publisher, 3)
        with following(publisher) as owner:
            owner.wait(is_exactly(3))
            store(publisher, 4)
            owner.wait(is_exactly(3, 4))
