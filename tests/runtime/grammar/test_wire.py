"""Messages over a socket: pieces, whole ones, full buffers, a closed end."""

import socket
from collections.abc import Iterator

import msgspec
import pytest

from runtime.grammar.wire import Accept, Channel, Close, FromGrammar, Mask, Open, ToGrammar

Ends = tuple[Channel[FromGrammar], Channel[ToGrammar], socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The scheduler's end, which never blocks; the other one; the other one's socket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield Channel(ours, FromGrammar), Channel(theirs, ToGrammar), theirs
    ours.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    here, there, _ = ends

    for message in (Open(1), Accept(1, 7), Close(1)):
        here.send(message)

    assert there.receive() == [Open(1), Accept(1, 7), Close(1)]


def test_a_message_in_pieces_is_one_message(ends: Ends) -> None:
    here, _, socket_there = ends
    data = msgspec.msgpack.encode(Mask(3, b"abcd"))
    data = len(data).to_bytes(4, "little") + data

    got: list[FromGrammar] = []
    for k in range(len(data)):
        socket_there.send(data[k : k + 1])
        got += here.receive()

    assert got == [Mask(3, b"abcd")]
    assert here.receive() == []


def test_what_does_not_fit_is_kept_and_sent_later(ends: Ends) -> None:
    _, there, socket_there = ends
    socket_there.setblocking(False)
    big = Mask(1, bytes(range(256)) * 20_000)

    there.send(big)

    assert there.unsent
    here, got = ends[0], list[FromGrammar]()
    while not got:
        got = here.receive()
        there.flush()
    assert got == [big]
    assert not there.unsent


def test_a_closed_end_is_told(ends: Ends) -> None:
    here, there, _ = ends

    there.close()

    with pytest.raises(EOFError):
        here.receive()
    with pytest.raises(OSError, match=r".*"):
        here.send(Open(1))


def test_what_is_no_message_is_refused(ends: Ends) -> None:
    here, _, socket_there = ends

    socket_there.send((3).to_bytes(4, "little") + b"abc")

    with pytest.raises(msgspec.DecodeError):
        here.receive()
