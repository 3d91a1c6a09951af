"""One server over HTTP: a request timed chunk by chunk, and the few facts it tells of itself."""

import time
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from tests.bench.serving.dialects import Dialect, Json
from tests.bench.serving.outcome import Outcome
from tests.bench.serving.prompt import Prompt

FLUSH_PATHS = ("/flush_cache", "/reset_prefix_cache")
_ERROR_CHARS = 300
_UNANSWERED = "ServerDisconnectedError"


class StreamLines:
    """The data of server-sent events, from bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return what follows `data:` in each line that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Client:
    """Sends prompts to the server at `url` inside `async with`; a connection a request in flight.

    headers    go with every request
    timeout_s  longest silence of a reply
    """

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.clock = clock
        # Nothing to unpack, so that bytes are there when they arrive.
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_read=timeout_s)
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> "Client":
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def send(self, dialect: Dialect, prompt: Prompt, output_tokens: int) -> Outcome:
        """Return what came of one request; a failure is an outcome, too."""
        data = msgspec.json.encode(dialect.body(prompt, output_tokens))
        outcome = await self._send(dialect, data, self.clock())
        # A kept connection that the server closes just as it is used again is nobody's failure.
        if (outcome.error or "").startswith(_UNANSWERED):
            outcome = await self._send(dialect, data, outcome.sent_s)
        return outcome

    async def _send(self, dialect: Dialect, data: bytes, sent_s: float) -> Outcome:
        outcome = Outcome(sent_s=sent_s)
        try:
            async with self._http.post(
                self.url + dialect.path, data=data, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status == 200:
                    await self._read(dialect, response, outcome)
                else:
                    text = (await response.read()).decode(errors="replace")
                    outcome.error = f"{response.status} {text[:_ERROR_CHARS]}"
        except aiohttp.ClientError as fault:
            outcome.error = f"{type(fault).__name__}: {fault}"[:_ERROR_CHARS]
        except msgspec.DecodeError as fault:
            outcome.error = f"an event is not JSON: {fault}"
        outcome.ended_s = self.clock()
        if outcome.error is None and not outcome.arrivals:
            outcome.error = "the reply has no token"
        return outcome

    async def _read(
        self, dialect: Dialect, response: aiohttp.ClientResponse, outcome: Outcome
    ) -> None:
        lines = StreamLines()
        async for data in response.content.iter_any():
            now_s = self.clock()
            for line in lines.feed(data):
                if line == b"[DONE]":
                    continue
                event: Json = msgspec.json.decode(line, type=dict[str, Any])
                if event.get("error"):
                    outcome.error = str(event["error"])[:_ERROR_CHARS]
                    return
                dialect.read(event, outcome, now_s)

    async def flush(self) -> str | None:
        """Empty the prefix cache; return the path that did, None where the server has none.

        Raises RuntimeError where it has one and refuses.
        """
        for path in FLUSH_PATHS:
            async with self._http.post(self.url + path) as response:
                if response.status == 200:
                    return path
                if response.status not in (404, 405, 501):
                    text = await response.text(errors="replace")
                    raise RuntimeError(f"{path}: {response.status} {text[:_ERROR_CHARS]}")
        return None

    async def get_json(self, *paths: str) -> Json:
        """Return the object at the first of `paths` that has one, else {}."""
        for path in paths:
            async with self._http.get(self.url + path) as response:
                data = await response.read() if response.status == 200 else b""
            try:
                found = msgspec.json.decode(data)
            except msgspec.DecodeError:
                continue
            if isinstance(found, dict):
                return found
        return {}
