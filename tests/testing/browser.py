"""A real headless browser, for tests of pages; skipped, with the reason, where there is none.

with chromium() as browser:
    browser.get(url)
    wait_for(lambda: browser.title == "x")
    assert complaints(browser) == []

The driver's path is given, so that nothing is looked for or downloaded.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
WAIT_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers have no user namespaces, and it opens loopback pages only
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1400,1000",
)


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Chrome]:
    """Start a browser and its driver, and end both; skip the test where one is missing."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    driver = shutil.which(DRIVER)
    if found is None or driver is None:
        missing = DRIVER if found else "browser (" + ", ".join(BROWSERS) + ")"
        pytest.skip(f"no {missing} in PATH: install a Chromium and its chromedriver")
    options = ChromeOptions()
    options.binary_location = found
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, *flags):
        options.add_argument(flag)
    browser = Chrome(options=options, service=Service(driver))
    try:
        browser.set_page_load_timeout(WAIT_S)
        browser.set_script_timeout(WAIT_S)
        yield browser
    finally:
        browser.quit()


def wait_for(condition: Callable[[], object], what: str = "") -> None:
    """Return once `condition` holds; fail, and say what was waited for, if it never does.

    A page that redraws may take an element away while it is read: that counts as not yet.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(StaleElementReferenceException):
            if condition():
                return
        assert time.monotonic() < deadline, f"not so after {WAIT_S:g} s: {what or condition}"
        time.sleep(0.05)


def complaints(browser: Chrome) -> list[str]:
    """Return what the console has shown since the last call, information left out."""
    log: list[dict[str, str]] = browser.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] in {"SEVERE", "WARNING"}]


def screenshot(browser: Chrome, path: Path) -> None:
    """Save what can be seen of the page as PNG."""
    assert browser.save_screenshot(str(path))


def texts_of(browser: Chrome, selector: str) -> list[str]:
    """Return the texts of all elements of a CSS selector, of one moment of a page that redraws.

    Space of any kind, as between the cells of a row, is a blank.
    """
    script = """return Array.from(document.querySelectorAll(arguments[0]),
                                 found => found.innerText ?? found.textContent)"""
    return [" ".join(text.split()) for text in browser.execute_script(script, selector)]
