"""Heads and bodies of HTTP requests: refused, or the same requests whatever pieces they come in."""

import h11
from hypothesis import strategies as st

from runtime.lang.lines import LineCutter
from runtime.server.request_head import MAX_HEAD_BYTES, MAX_HEADERS, StrictConnection
from tests.fuzz.mutation import cuts, damaged_bytes
from tests.fuzz.target import Target, assert_one_line

_HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
_SEEDS = [
    _CHUNKED,
    _HEAD + b"Content-Length: 2\r\n\r\n{}",
    _HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nUpgrade: h2c\r\n"
    b"Connection: close\r\n\r\n",
    _HEAD + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    _HEAD + b"a: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n",
]
_EVENTS = [
    b'data: {"text":"a\xe2\x80\xa8b"}\n\ndata: [DONE]\n\n',
    b"event: message_stop\r\ndata: {}\r\n\r\n: comment\n\n",
]
_SHOWN_BYTES = 200


def _requests(pieces: list[bytes]) -> tuple[list[bytes], str]:
    """Return what of a connection's first request is told, with bodies joined, and its refusal."""
    connection = StrictConnection()
    told: list[bytes] = []
    body = bytearray()
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    assert len(list(event.headers)) <= MAX_HEADERS
                    told.append(repr(event).encode())
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    told.append(bytes(body))
                    return told, ""
                else:
                    return told, ""
    except h11.RemoteProtocolError as fault:
        refusal = fault
    else:
        return told, ""
    assert connection.refusal is refusal
    assert 400 <= refusal.error_status_hint <= 501
    assert_one_line(refusal)
    return told, "refused"


def _brief(told: tuple[list[bytes], str]) -> tuple[list[bytes], str]:
    return [event[:_SHOWN_BYTES] for event in told[0]], told[1]


def _check(data: bytes) -> None:
    seed = sum(data)
    whole = _requests([data])
    cut = _requests(cuts(data, seed))
    # A head that grows beyond its bound may be refused before it is seen to be no head at all.
    same = whole[0] == cut[0] and (whole[1] == cut[1] or len(data) > MAX_HEAD_BYTES)
    assert same, (_brief(whole), _brief(cut))


def _check_lines(data: bytes) -> None:
    whole, parts = LineCutter(), LineCutter()
    lines = whole.take(data) + whole.take(b"\n")
    pieces = [line for piece in cuts(data, sum(data)) for line in parts.take(piece)]
    assert lines == pieces + parts.take(b"\n")
    assert len(lines) == data.count(b"\n") + 1


HEADS = Target("heads", damaged_bytes(_SEEDS), _check, 100)
EVENT_LINES = Target(
    "event_lines", st.one_of(damaged_bytes(_EVENTS), st.binary(max_size=99)), _check_lines, 60
)
