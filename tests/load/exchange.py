"""One HTTP exchange on a plain socket: cheap, and as slow or rude as a client can be."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

_HOST = "127.0.0.1"
# Of a client that reads slowly: with more, the kernel would read for it.
_SMALL_BUFFER_BYTES = 1 << 12
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply; names in lower case."""

    status: int
    headers: dict[str, str]


def post(path: str, body: Any) -> bytes:
    """Return a request as bytes, which asks for the connection to be closed behind its reply."""
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


class Exchange:
    """A connection for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, *, address: str = _HOST, small: bool = False) -> "Exchange":
        """Connect from a loopback address.

        small  have the kernel keep little of what is not read
        Raises OSError.
        """
        client = socket.socket()
        try:
            client.setblocking(False)
            if small:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
            client.bind((address, 0))
            await asyncio.get_running_loop().sock_connect(client, (_HOST, port))
            limit = _SMALL_BUFFER_BYTES if small else _PIECE_BYTES
            reader, writer = await asyncio.open_connection(sock=client, limit=limit)
        except BaseException:
            client.close()
            raise
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Write bytes, as far as the connection takes them."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Head:
        """Return the head of the reply. Raises IncompleteReadError where the server closes."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Head(int(lines[0].split()[1]), headers)

    async def body(self, head: Head) -> bytes:
        """Return the body. Raises IncompleteReadError where it is cut off."""
        length = head.headers.get("content-length")
        if length is not None:
            return await self._reader.readexactly(int(length))
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a streamed body. Raises IncompleteReadError where it is cut off."""
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16)
            chunk = (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return
            yield chunk

    async def piece(self, count: int) -> bytes:
        """Return up to so many bytes, b"" at the end of the connection."""
        return await self._reader.read(count)

    def close(self) -> None:
        """Close the connection in good order."""
        self._writer.close()

    def reset(self) -> None:
        """Drop the connection, and have the server told so."""
        client = self._writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
