"""Request smuggling and endless heads: such a request is refused, whatever stands in its body."""

import h11
import pytest

from runtime.server.request_head import MAX_HEAD_BYTES, MAX_HEADERS, StrictConnection

FIRST = b"POST /abort_request HTTP/1.1\r\nHost: here\r\n"
CHUNK = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


def events(data: bytes) -> list[str]:
    """Return the names of the events that a request is."""
    connection = StrictConnection()
    connection.receive_data(data)
    names: list[str] = []
    while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        names.append(type(event).__name__)
    return names


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (FIRST + b"Content-Length: 2\r\n" + CHUNK, 400, "contradict"),
        (FIRST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "conflicting"),
        (FIRST.replace(b"1.1", b"1.0") + CHUNK, 400, "HTTP/1.0"),
        (FIRST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding"),
        (FIRST + b"a: b\r\n" * MAX_HEADERS + b"\r\n", 431, "at most"),
        (FIRST + b"a: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431, "at most"),
        (FIRST.replace(b"/abort_request", b"/" + b"a" * MAX_HEAD_BYTES) + b"\r\n", 431, "at most"),
        (FIRST + b"a: " + b"b" * MAX_HEAD_BYTES, 431, "too long"),
    ],
    ids=["both", "two", "old", "coded", "many", "long", "target", "never ending"],
)
def test_a_head_that_proxies_may_read_otherwise_or_that_is_too_long_is_refused(
    data: bytes, status: int, text: str
) -> None:
    connection = StrictConnection()
    connection.receive_data(data)

    with pytest.raises(h11.RemoteProtocolError, match=text):
        connection.next_event()

    assert connection.refusal is not None
    assert connection.refusal.error_status_hint == status


@pytest.mark.parametrize(
    "data",
    [
        FIRST + CHUNK,
        FIRST + b"Content-Length: 2\r\n\r\n{}",
        FIRST + b"Content-Length: 2\r\n" + b"a: b\r\n" * (MAX_HEADERS - 2) + b"\r\n{}",
    ],
    ids=["chunked", "measured", "as many as may be"],
)
def test_an_ordinary_head_is_taken(data: bytes) -> None:
    assert events(data) == ["Request", "Data", "EndOfMessage"]


def test_a_body_in_crumbs_is_refused_and_one_in_pieces_is_not() -> None:
    head = FIRST + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = head + (b"40\r\n" + b"a" * 64 + b"\r\n") * 5000 + b"0\r\n\r\n"
    assert events(pieces)[-1] == "EndOfMessage"

    with pytest.raises(h11.RemoteProtocolError, match="chunks"):
        events(head + b"1\r\na\r\n" * 5000)
    assert events(head + b"1\r\na\r\n" * 100)[-1] == "Data"


def test_a_refusal_quotes_no_more_than_the_beginning() -> None:
    connection = StrictConnection()
    connection.receive_data(b"POST /generate\0" + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")

    with pytest.raises(h11.RemoteProtocolError, match="illegal request line") as refused:
        connection.next_event()

    assert connection.refusal is refused.value
    assert len(str(refused.value)) <= 200


def second_request(pieces: tuple[bytes, ...]) -> StrictConnection:
    """Answer a first request, and read a second one that comes in `pieces`."""
    connection = StrictConnection()
    connection.receive_data(FIRST + b"\r\n" + pieces[0])
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass
    connection.send(h11.Response(status_code=200, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    for piece in pieces[1:]:
        assert connection.next_event() is h11.NEED_DATA
        connection.receive_data(piece)
    return connection


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_a_head_has_the_same_bound_however_it_is_cut(cut: int) -> None:
    start = FIRST + b"a: "
    head = start + b"b" * (MAX_HEAD_BYTES - len(start) - 4) + b"\r\n\r\n"
    longer = start + b"b" + head[len(start) :]

    fits = second_request((head[: len(head) - cut], head[len(head) - cut :]) if cut else (head,))
    over = second_request((longer[: len(head) - cut], longer[len(head) - cut :]))

    assert isinstance(fits.next_event(), h11.Request)
    with pytest.raises(h11.RemoteProtocolError, match=str(MAX_HEAD_BYTES)):
        over.next_event()
