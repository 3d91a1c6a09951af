"""One line a request, at the level and for the paths that were asked for."""

import asyncio
import logging
import socket

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.server.access_log import LOGGER, open_access_log


async def fine(request: Request) -> Response:
    """Answer."""
    return Response("fine")


def lines(
    caplog: pytest.LogCaptureFixture, level: str, leave_out: tuple[str, ...] = ()
) -> list[str]:
    """Serve three requests with uvicorn; return the lines of the access log."""

    async def scenario() -> None:
        app = Starlette(routes=[Route("/{rest:path}", fine)])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(app, log_config=None, log_level="warning", ws="none")
            web = uvicorn.Server(config)
            open_access_log(level, leave_out=leave_out)
            serving = asyncio.ensure_future(web.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                for path in ("/generate?api_key=sk-1&cache_salt=s", "/health", "/health_generate"):
                    await client.get(path)
            web.should_exit = True
            await serving

    asyncio.run(scenario())
    open_access_log("warning")
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_every_request_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    told = lines(caplog, "info")

    assert len(told) == 3
    assert told[0].endswith('"GET /generate HTTP/1.1" 200')


def test_a_key_in_a_query_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not any("sk-1" in line or "salt" in line for line in lines(caplog, "debug"))


def test_paths_are_left_out_by_their_beginning(caplog: pytest.LogCaptureFixture) -> None:
    told = lines(caplog, "info", ("/health", "/metrics"))

    assert len(told) == 1


def test_above_info_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, "warning") == []


def test_a_line_of_another_kind_is_not_touched() -> None:
    open_access_log("info", leave_out=("/",))
    record = logging.LogRecord("x", logging.INFO, "", 0, "plain", None, None)

    assert logging.getLogger(LOGGER).filter(record)
    assert record.getMessage() == "plain"
    open_access_log("warning")
