"""Lines of a stream of events, however its bytes are cut into chunks.

A line ends at "\\n" and nowhere else. httpx and `str.splitlines` see ends in U+2028 and a few more,
which JSON may hold as they are.
"""

from collections.abc import AsyncGenerator, AsyncIterator


class LineCutter:
    """Cuts chunks into lines; "\\r" before an end is no part of its line."""

    def __init__(self) -> None:
        # Of the line that has no end yet: joined once, however many chunks it comes in.
        self._begun: list[bytes] = []

    def take(self, chunk: bytes) -> list[str]:
        """Return the lines that end in `chunk`; b"\\n" after the last one ends what is left."""
        first, *others = chunk.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        ended = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return [line.removesuffix(b"\r").decode(errors="replace") for line in ended]


async def lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Yield the lines of a stream as they come, the last one whether it ends or not."""
    cutter = LineCutter()
    async for chunk in chunks:
        for line in cutter.take(chunk):
            yield line
    for line in cutter.take(b"\n"):
        yield line
