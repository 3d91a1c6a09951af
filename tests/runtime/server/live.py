"""A scripted server on a real socket, and what a browser shows of its page."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import uvicorn
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from runtime.cache_messages import CacheView
from runtime.config import ServerConfig
from runtime.server.cache_page import PAGE
from tests.runtime.server.engine import Engine, serving
from tests.testing.browser import complaints, texts_of, wait_for

# How often the page asks here: the server answers five times a second at most.
POLL_MS = 250


@contextmanager
def polled_often() -> Iterator[None]:
    """Serve a page that differs in nothing but how often it asks."""
    page = PAGE.read_text("utf-8")
    assert page.count("POLL_MS = 1000,") == 1
    with tempfile.TemporaryDirectory() as folder:
        quick = Path(folder) / "page.html"
        quick.write_text(page.replace("POLL_MS = 1000,", f"POLL_MS = {POLL_MS},"), "utf-8")
        with patch("runtime.server.cache_page.PAGE", quick):
            yield


class LiveServer:
    """A scripted server on a real socket, in a thread of its own; its page asks often."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.engine: Engine
        self._web: uvicorn.Server
        self._thread.start()
        assert self._up.wait(60)

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            with polled_often():
                server = await stack.enter_async_context(serving(self._config))
            # All scripted servers tell the same facts: others must not find this one.
            stack.enter_context(patch.dict(server.manager.ready.info, full_page_bytes=1 << 20))
            self.engine = server.engine
            settings = uvicorn.Config(server.app, log_config=None, ws="none", lifespan="off")
            self._web = uvicorn.Server(settings)
            self._up.set()
            await self._web.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Stop answering; the port is closed afterwards."""
        self._web.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        with suppress(OSError):
            self._listener.close()


def opened(browser: Chrome, server: LiveServer) -> Chrome:
    # A page that is left open goes on asking a server that is gone, and complains.
    browser.get("about:blank")
    complaints(browser)
    browser.get(server.url)
    wait_for(lambda: state_of(browser) == "live", "the page shows a view")
    return browser


def state_of(browser: Chrome) -> str | None:
    return browser.find_element(By.TAG_NAME, "html").get_attribute("data-state")


def text_of(browser: Chrome, id: str) -> str:
    return browser.find_element(By.ID, id).text


def at(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def classes(browser: Chrome, selector: str) -> set[str]:
    return set((at(browser, selector).get_attribute("class") or "").split())


def drawn(browser: Chrome) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, "#spans > g"))


def show(live: LiveServer, browser: Chrome, view: CacheView) -> None:
    """Let the server tell `view` from now on, and wait until the page has it."""
    live.engine.view = view
    asked = len(live.engine.asked)
    # Two questions on: by then the page has shown the answer to the first.
    wait_for(lambda: len(live.engine.asked) >= asked + 2, "the page asks again")
    wait_for(lambda: state_of(browser) == "live")


def log_of(browser: Chrome) -> list[str]:
    return texts_of(browser, "#log li span")
