"""Connections of a queue: guests come, wake bytes pass, ends are seen."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.errors import RuntimeFault
from runtime.wire.queue_link import Deadline, Host, PeerDied, connect
from runtime.wire.queue_memory import allocate


def host(folder: str, *roles: str) -> Host:
    """Return a host of a file with a few bytes."""
    file = allocate(6, folder)
    file.write(b"shared")
    return Host(file, list(roles), folder)


def test_guests_get_the_file_and_their_role(folder: str) -> None:
    one = host(folder, "reader 0", "reader 1")
    with ThreadPoolExecutor(2) as pool:
        guests = [pool.submit(connect, address, 30) for address in reversed(one.addresses)]
        links = one.accept(30)
        second, first = (guest.result() for guest in guests)

    assert [first[2], second[2]] == ["reader 0", "reader 1"]
    assert all(os.pread(file.fileno(), 9, 0) == b"shared" for _, file, _ in (first, second))
    assert not os.get_inheritable(first[1].fileno())
    assert not os.listdir(folder)
    one.close()
    for link, (mine, file, _) in zip(links, (first, second), strict=True):
        mine.wake()
        assert link.drain()
        mine.close()
        assert not link.drain()
        assert not link.drain()
        link.close()
        file.close()


def test_wake_never_blocks_and_a_dead_peer_is_seen_behind_unread_bytes(folder: str) -> None:
    one = host(folder, "reader 0")
    with ThreadPoolExecutor(1) as pool:
        guest = pool.submit(connect, one.addresses[0], 30)
        (link,) = one.accept(30)
    mine, file, _ = guest.result()
    file.close()
    for _ in range(5000):
        link.wake()
        mine.wake()
    assert link.drain()
    mine.wake()
    mine.close()
    link.wake()

    assert not link.drain()
    assert not link.drain()
    link.close()


def test_accept_can_go_on_after_a_timeout(folder: str) -> None:
    one = host(folder, "reader 0", "reader 1")
    with (
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        first.connect(one.addresses[0])
        with pytest.raises(TimeoutError, match="no reader 1 has attached in 0 s"):
            one.accept(0)
        second.connect(one.addresses[1])
        links = one.accept(0)

    assert [link.drain() for link in links] == [False, False]
    for link in links:
        link.close()


def test_a_host_that_closes_half_attached_leaves_nothing(folder: str) -> None:
    one = host(folder, "reader 0", "reader 1")
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(one.addresses[0])
        with pytest.raises(TimeoutError):
            one.accept(0)
        one.close()
        assert first.recv(100).strip() == b"reader 0"
        assert first.recv(100) == b""

    assert not os.listdir(folder)


def test_a_host_that_is_gone_is_a_dead_peer(folder: str) -> None:
    one = host(folder, "reader 0")
    listening = threading.Event()

    def attach() -> None:
        listening.set()
        connect(one.addresses[0], 30)

    with ThreadPoolExecutor(1) as pool:
        guest = pool.submit(attach)
        listening.wait()
        one.close()
        with pytest.raises(PeerDied):
            guest.result()
    with pytest.raises(PeerDied, match="no host of a queue listens"):
        connect(one.addresses[0], 30)
    assert not os.listdir(folder)


def test_a_host_that_ends_before_it_gives_the_file_is_a_dead_peer(folder: str) -> None:
    one = host(folder, "reader 0")
    with ThreadPoolExecutor(1) as pool:
        guest = pool.submit(connect, one.addresses[0], 30)
        one._listeners[0].accept()[0].close()
        with pytest.raises(PeerDied, match=r"that listened at .* has ended"):
            guest.result()
    one.close()


def test_a_host_that_does_not_accept_is_a_timeout(folder: str) -> None:
    one = host(folder, "reader 0")

    with pytest.raises(TimeoutError):
        connect(one.addresses[0], 0.01)
    one.close()


def test_a_folder_without_room_for_a_socket_is_a_fault(folder: str) -> None:
    with pytest.raises(RuntimeFault, match="no socket for a queue in"):
        host(str(Path(folder) / ("x" * 120)), "reader 0")


def test_a_deadline_is_never_negative_and_may_be_none() -> None:
    assert Deadline(None).left_ms() is None
    assert Deadline(-5).left_ms() == 0
    assert 59_000 < (Deadline(60).left_ms() or 0) <= 60_000
    assert Deadline(0.0000001).left_ms() in (0, 1)
