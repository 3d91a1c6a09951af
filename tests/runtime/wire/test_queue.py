"""Queues between real processes: order, room, wake-ups and deaths."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.errors import RuntimeFault
from runtime.wire.queue import PeerClosed, PeerDied, QueueReader, QueueWriter
from runtime.wire.queue_memory import QueueMemory
from tests.runtime.wire.queue_processes import ATTACH_S, child, line, summary

# Long enough for any machine; no test waits so long.
WAIT_S = 60.0


def write_for_ever(writer: QueueWriter) -> None:
    """Write until that fails."""
    while True:
        writer.write(b"x" * 100, timeout_s=WAIT_S)


@contextlib.contextmanager
def pair(folder: str, size: int = 4096) -> Iterator[tuple[QueueWriter, QueueReader]]:
    """Both ends of a queue in this process."""
    writer = QueueWriter.create(size=size, folder=folder)
    with ThreadPoolExecutor(1) as pool:
        guest = pool.submit(QueueReader.attach, writer.addresses[0], ATTACH_S)
        writer.accept(ATTACH_S)
        reader = guest.result()
    with contextlib.closing(writer), contextlib.closing(reader):
        yield writer, reader


def test_messages_keep_their_order_and_bytes_around_the_end(folder: str) -> None:
    rng = random.Random(2)
    with pair(folder, 1000) as (writer, reader):
        for _ in range(500):
            sent = [rng.randbytes(rng.randrange(100)) for _ in range(rng.randrange(1, 9))]
            for message in sent:
                cut = rng.randrange(len(message) + 1)
                writer.write(message[:cut], bytearray(message[cut:]), timeout_s=0)
            assert [reader.read(0) for _ in sent] == sent
            assert reader.read(0) is None


def test_ends_that_are_attached_may_accept_again(folder: str) -> None:
    own = QueueReader.create(size=4096, folder=folder)
    with pair(folder) as (writer, reader), ThreadPoolExecutor(1) as pool:
        guest = pool.submit(QueueWriter.attach, own.addresses[0], ATTACH_S)
        own.accept(ATTACH_S)
        for end in (writer, reader, own, guest.result()):
            end.accept(0)

        for sender, receiver in ((writer, reader), (guest.result(), own)):
            sender.write(b"message")
            assert receiver.read(0) == b"message"
            sender.close()
        own.close()


def test_a_message_may_fill_the_queue_but_not_more(folder: str) -> None:
    with pair(folder, 1024) as (writer, reader):
        writer.write(b"shift")
        assert reader.read() == b"shift"
        writer.write(b"x" * 1016)
        assert reader.read() == b"x" * 1016
        with pytest.raises(ValueError, match="1017 bytes in a queue of 1024"):
            writer.write(b"x" * 1017)
        writer.write(memoryview(b"still usable"))
        assert reader.read() == b"still usable"


def test_a_full_queue_is_a_timeout_and_nothing_is_written(folder: str) -> None:
    with pair(folder, 64) as (writer, reader):
        writer.write(b"a" * 40)
        for timeout_s in (0, 0.01):
            with pytest.raises(TimeoutError, match="reader 0 has not made room"):
                writer.write(b"b" * 20, timeout_s=timeout_s)
        assert reader.read(0) == b"a" * 40
        assert reader.read(0) is None
        writer.write(b"b" * 20, timeout_s=0)
        assert reader.read(0) == b"b" * 20


def test_a_writer_without_room_goes_on_when_there_is_some(folder: str) -> None:
    with pair(folder, 64) as (writer, reader), ThreadPoolExecutor(1) as pool:
        for number in range(200):
            # Every other one needs all the room there is.
            message = (b"%d" % number).ljust((24, 56)[number % 2])
            writer.write(b"a" * 40)
            blocked = pool.submit(writer.write, message, timeout_s=WAIT_S)
            while not reader._memory.wanted(0):
                time.sleep(1e-5)
            assert reader.read(WAIT_S) == b"a" * 40
            blocked.result()
            assert reader.read(WAIT_S) == message


@pytest.mark.parametrize("spin_s", [0.0, 0.001])
def test_readers_of_any_speed_read_the_same(folder: str, spin_s: float) -> None:
    """Sizes up to the queue's: no two of the large ones have room in it at once."""
    size = 1 << 16
    rng = random.Random(3)
    sizes = [rng.choice((0, 1, 8, 100, size // 2, size - 8)) for _ in range(400)]
    messages = [rng.randbytes(rng.randrange(most + 1)) for most in sizes]
    writer = QueueWriter.create(readers=2, size=size, folder=folder)
    fast, slow = writer.addresses
    with (
        child("summarise", fast, 0, spin_s) as first,
        child("summarise", slow, 0.002, spin_s) as second,
    ):
        writer.accept(ATTACH_S)
        for message in messages:
            writer.write(message, timeout_s=WAIT_S)
        writer.close()

        assert line(first) == line(second) == summary(iter(messages))


def test_no_wake_up_is_lost_in_many_small_messages(folder: str) -> None:
    messages = [b"%d" % number for number in range(100_000)]
    writer = QueueWriter.create(size=1 << 12, folder=folder)
    with child("summarise", writer.addresses[0], 0, 0) as process:
        writer.accept(ATTACH_S)
        for message in messages:
            writer.write(message, timeout_s=WAIT_S)
        writer.close()

        assert line(process) == summary(iter(messages))


@pytest.mark.parametrize("spin_s", [0.0, 0.001])
def test_each_of_two_sleeping_ends_wakes_the_other(folder: str, spin_s: float) -> None:
    writer = QueueWriter.create(folder=folder, size=4096)
    reader = QueueReader.create(folder=folder, size=4096, spin_s=spin_s)
    with (
        child("echo", writer.addresses[0], reader.addresses[0]),
        contextlib.closing(writer),
        contextlib.closing(reader),
    ):
        writer.accept(ATTACH_S)
        reader.accept(ATTACH_S)
        for number in range(3000):
            writer.write(b"%d" % number)
            assert reader.read(WAIT_S) == b"%d" % number


@pytest.mark.parametrize(("spin_s", "may_spin"), [(0.0, True), (WAIT_S, True), (WAIT_S, False)])
def test_a_reader_that_polls_does_not_sleep_meanwhile(
    folder: str, spin_s: float, may_spin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.wire.queue._SPINS", may_spin)
    slept: list[int] = []
    monkeypatch.setattr(QueueMemory, "set_sleeps", lambda _, __, value: slept.append(value))
    host = QueueReader.create(size=4096, folder=folder, spin_s=spin_s)
    writer = QueueWriter.create(size=4096, folder=folder)
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as ends:
        other = pool.submit(QueueWriter.attach, host.addresses[0], ATTACH_S)
        guest = pool.submit(QueueReader.attach, writer.addresses[0], ATTACH_S, spin_s=spin_s)
        host.accept(ATTACH_S)
        writer.accept(ATTACH_S)
        for end in (host, writer, other.result(), guest.result()):
            ends.callback(end.close)

        for reader in (host, guest.result()):
            assert reader.read(0.01) is None
            assert (slept[0], slept[-1]) == (0 if spin_s and may_spin else 1, 0)
            slept.clear()


def test_a_reader_that_is_awake_gets_no_wake_bytes(folder: str) -> None:
    with pair(folder) as (writer, reader):
        for sleeps, expected in ((0, b""), (1, b"\0")):
            reader._memory.set_sleeps(0, sleeps)
            for _ in range(3):
                writer.write(b"message")
            reader._links[0].wake()
            writer._links[0].wake()
            assert reader._links[0]._socket.recv(100) == expected + b"\0"
            assert [reader.read(0) for _ in range(4)] == [b"message"] * 3 + [None]
            # Of the writer, too, which waits for no room: but for the one above.
            assert writer._links[0]._socket.recv(100) == b"\0"


def test_one_message_wakes_all_readers_that_sleep(folder: str) -> None:
    writer = QueueWriter.create(readers=3, size=4096, folder=folder)
    with ThreadPoolExecutor(3) as pool, contextlib.ExitStack() as ends:
        ends.callback(writer.close)
        guests = [pool.submit(QueueReader.attach, one, ATTACH_S) for one in writer.addresses]
        writer.accept(ATTACH_S)
        readers = [ends.enter_context(contextlib.closing(guest.result())) for guest in guests]
        for number in (0, 2):
            readers[number]._memory.set_sleeps(number, 1)

        writer.write(b"message")
        for link in writer._links:
            link.wake()

        got = [reader._links[0]._socket.recv(100) for reader in readers]
        assert got == [b"\0\0", b"\0", b"\0\0"]


def test_a_reader_killed_while_the_writer_waits_is_named(folder: str) -> None:
    writer = QueueWriter.create(readers=2, size=1024, folder=folder)
    with (
        child("summarise", writer.addresses[0], 0, 0),
        child("stop_after", writer.addresses[1], 1) as stopped,
        contextlib.closing(writer),
    ):
        writer.accept(ATTACH_S)
        writer.write(b"first")
        assert line(stopped) == "stopped"

        def kill() -> None:
            while not writer._memory.wanted(1):
                time.sleep(0.001)
            stopped.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(PeerDied, match="reader 1 of the queue has died") as raised:
            write_for_ever(writer)
        killer.join()

        assert raised.value.reader == 1
        assert not isinstance(raised.value, PeerClosed)


def test_a_dead_reader_is_noticed_in_a_queue_with_room(folder: str) -> None:
    writer = QueueWriter.create(folder=folder, size=4096)
    with child("stop_after", writer.addresses[0], 0) as process, contextlib.closing(writer):
        writer.accept(ATTACH_S)
        assert line(process) == "stopped"
        writer.write(b"first")
        writer.check()
        process.kill()
        process.wait()

        for _ in range(2):
            with pytest.raises(PeerDied, match="has died"):
                writer.write(b"second")
        with pytest.raises(PeerDied):
            writer.check()


def test_whole_messages_of_a_killed_writer_are_read_and_no_half_one(folder: str) -> None:
    reader = QueueReader.create(folder=folder, size=4096)
    with child("die_in_a_message", reader.addresses[0], 5), contextlib.closing(reader):
        reader.accept(ATTACH_S)

        assert [reader.read(WAIT_S) for _ in range(5)] == [b"%d" % n for n in range(5)]
        for timeout_s in (WAIT_S, 0, None):
            with pytest.raises(PeerDied, match="the writer of the queue has died") as raised:
                reader.read(timeout_s)
            assert not isinstance(raised.value, PeerClosed)


def test_an_end_in_order_is_told_from_a_death(folder: str) -> None:
    with pair(folder) as (writer, reader):
        writer.write(b"last")
        writer.close()
        writer.close()
        assert reader.read() == b"last"
        with pytest.raises(PeerClosed):
            reader.read(0)
        assert writer._memory._map.closed
    with pair(folder) as (writer, reader):
        reader.close()
        with pytest.raises(PeerClosed, match="reader 0 has closed"):
            writer.write(b"nobody reads")


def test_ends_that_are_not_attached_or_of_the_wrong_kind_are_faults(folder: str) -> None:
    writer, reader = QueueWriter.create(folder=folder), QueueReader.create(folder=folder)
    with contextlib.closing(writer), contextlib.closing(reader), ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeFault, match="not attached yet"):
            writer.write(b"too soon")
        with pytest.raises(RuntimeFault, match="not attached yet"):
            reader.read(0)
        wrong = pool.submit(QueueWriter.attach, writer.addresses[0], ATTACH_S)
        writer.accept(ATTACH_S)
        with pytest.raises(RuntimeFault, match="a writer came to the address of a queue's reader"):
            wrong.result()
        with pytest.raises(PeerDied):
            writer.check()


@pytest.mark.parametrize("count", [4096 - 7, 1 << 40])
def test_an_impossible_length_is_a_fault(folder: str, count: int) -> None:
    with pair(folder, 4096) as (writer, reader):
        writer.write(b"fine")
        writer._memory.put_length(0, count)
        with pytest.raises(RuntimeFault, match="the queue is damaged"):
            reader.read(0)


def test_no_room_for_a_queue_is_a_fault(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.wire.queue_memory._free_bytes", lambda _: 1000)
    with pytest.raises(RuntimeFault, match="no room for 69632 bytes"):
        QueueWriter.create(size=1 << 16, folder=folder)
