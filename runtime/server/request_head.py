"""Refuses requests before they are read: ambiguous, too long, or in many tiny chunks.

A proxy in front may take another end for the end of such a request, and what follows for the next
client's. h11 refuses contradicting lengths itself, and a head that grows beyond its bound; a head
that arrives whole is measured here.
"""

import h11

__all__ = ["MAX_HEADERS", "MAX_HEAD_BYTES", "StrictConnection"]

MAX_HEADERS = 128
MAX_HEAD_BYTES = 1 << 14
# Each chunk of a body costs ten microseconds: of one byte each, a long body would cost minutes.
_FREE_CHUNKS = 1 << 12
_LEAST_CHUNK_BYTES = 64
_MOST_REASON_CHARS = 200


class StrictConnection(h11.Connection):
    """h11's connection, of a server, that refuses more.

    refusal  why the peer's last request was refused; None: none was. h11 quotes what it did not
             understand: of a long text only the beginning is kept
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.refusal: h11.RemoteProtocolError | None = None
        self._chunks = 0
        self._body_bytes = 0
        # Of the connection: what arrived, and where in it the present request begins.
        self._arrived = 0
        self._began = 0

    def receive_data(self, data: bytes) -> None:
        """Take what arrived, as h11 does."""
        super().receive_data(data)
        self._arrived += len(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, as h11 does. Raises h11.RemoteProtocolError."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._chunks = self._body_bytes = 0
                _check(event, self._read() - self._began)
            elif isinstance(event, h11.Data):
                self._count(len(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._began = self._read()
        except h11.RemoteProtocolError as fault:
            text = str(fault)[:_MOST_REASON_CHARS]
            self.refusal = h11.RemoteProtocolError(text, fault.error_status_hint)
            raise self.refusal from fault
        return event

    def _read(self) -> int:
        """Return how many bytes of the connection h11 has understood."""
        return self._arrived - len(self.trailing_data[0])

    def _count(self, size: int) -> None:
        """Count a chunk. Raises RemoteProtocolError for a body of too many small ones."""
        self._chunks += 1
        self._body_bytes += size
        few = self._chunks <= _FREE_CHUNKS
        if not few and self._body_bytes < self._chunks * _LEAST_CHUNK_BYTES:
            raise h11.RemoteProtocolError(
                f"chunks have at least {_LEAST_CHUNK_BYTES} bytes, in the mean"
            )


def _check(request: h11.Request, size: int) -> None:
    """Raise RemoteProtocolError for a head, of `size` bytes, that is not to be served."""
    names = [name for name, _ in request.headers]
    if len(names) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError(
            f"a request's head has at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes", 431
        )
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding contradict each other")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
