"""What the scheduler and a grammar's process say to each other, and the socket they say it on.

A message is its length in four bytes, little-endian, then MessagePack.
"""

import socket
from typing import Any, Generic, TypeVar

import msgspec

from runtime.messages import Grammar

_HEADER_BYTES = 4
# More than such a socket holds.
_READ_BYTES = 1 << 18

Incoming = TypeVar("Incoming")


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Compile a grammar; the first message, once. Answered by `Compiled` or `Failed`.

    limit_s       this, and each later message, may take so long before the process is killed
    memory_bytes  the process may take so much more than it was born with
    """

    grammar: Grammar
    limit_s: float
    memory_bytes: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """Begin an output. Answered by the `Mask` of its first token."""

    slot: int


class Accept(msgspec.Struct, frozen=True, tag=True):
    """Go on with a token that the last mask allowed. Answered by the next `Mask`."""

    slot: int
    token: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Forget an output. Not answered."""

    slot: int


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """The grammar can be served. Also what the nursery says once it can fork."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot serve, for this reason, and ends."""

    message: str


class Mask(msgspec.Struct, frozen=True, tag=True):
    """Tokens that an output may go on with.

    bits  ceil(V / 32) little-endian int32 words, bit k % 32 of word k // 32 for token k
    """

    slot: int
    bits: bytes


ToGrammar = Compile | Open | Accept | Close
FromGrammar = Compiled | Failed | Mask


class Channel(Generic[Incoming]):
    """One end of a stream socket; blocks or does not, as the socket was set to."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        """`incoming` is the union of what may arrive: `Incoming` as a value."""
        self._socket = end
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._unsent)

    def close(self) -> None:
        """Close the socket; the process at the other end will notice and go."""
        self._socket.close()

    def keep(self, *messages: "ToGrammar | FromGrammar") -> None:
        """Keep messages for the next `flush`."""
        for message in messages:
            data = msgspec.msgpack.encode(message)
            self._unsent += len(data).to_bytes(_HEADER_BYTES, "little") + data

    def send(self, *messages: "ToGrammar | FromGrammar") -> None:
        """Send, or keep what does not fit for `flush`. Raises OSError when nobody listens."""
        self.keep(*messages)
        self.flush()

    def flush(self) -> None:
        """Send what was kept. Raises OSError when nobody listens."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def receive(self) -> list[Incoming]:
        """Return the messages that came in; a blocking socket waits for some bytes.

        Raises EOFError when the other end is gone, msgspec.DecodeError for what is no message.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        self._received += data
        messages: list[Incoming] = []
        at = 0
        with memoryview(self._received) as received:
            while len(received) - at >= _HEADER_BYTES:
                start = at + _HEADER_BYTES
                end = start + int.from_bytes(received[at:start], "little")
                if len(received) < end:
                    break
                messages.append(self._decoder.decode(received[start:end]))
                at = end
        del self._received[:at]
        return messages
