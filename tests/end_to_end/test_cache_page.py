"""The window into the cache, end to end: a real server's tree in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.end_to_end.pools import wait_idle
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.browser import chromium, complaints, texts_of, wait_for
from tests.testing.server_process import ServerProcess, running_server

SHARED = [0, *(10 + k % 230 for k in range(600))]
PAGE = 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has answered two requests with a shared prefix, and one of another salt."""
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    flags = ("--full-pages", "32", "--swa-pages", "80", "--rings", "24")
    with running_server(*model, *flags) as server:
        # The second goes on at the end of the first prompt, and so beside the first answer.
        for tail in ([], [9] * 300):
            server.generate([*SHARED, *tail], max_new_tokens=4, ignore_eos=True)
        server.generate([0, 5, 6], {"cache_salt": "a-secret-salt"}, max_new_tokens=2)
        wait_idle(server)
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A browser for all tests of this module."""
    with chromium() as found:
        yield found


def test_the_tree_that_is_told_is_whole(server: ServerProcess) -> None:
    view = server.get("/cache")

    spans = {span["id"]: span for span in view["spans"]}
    assert view["spans_left_out"] == 0
    assert len(spans) == len(view["spans"])
    for span in spans.values():
        above = spans.get(span["parent"])
        assert span["start"] == (above["end"] if above else 0)
        assert span["num_pages"] == -(-span["end"] // PAGE) - span["start"] // PAGE
        assert span["children"] == sum(s["parent"] == span["id"] for s in spans.values())
        assert all(span["start"] < position <= span["end"] for position, *_ in span["points"])
    # Divergence inside the third page: two whole pages are shared, and two branches follow.
    shared = [span for span in spans.values() if span["children"] == 2]
    assert [(span["start"], span["end"]) for span in shared] == [(0, 2 * PAGE)]
    counters, pools = view["counters"], {pool["name"]: pool for pool in view["pools"]}
    assert counters["cached_tokens"] == len(SHARED)
    assert sum(span["num_points"] for span in spans.values()) == pools["rings"]["evictable"]
    full = pools["full"]
    assert full["free"] + full["evictable"] == full["capacity"] == 32
    assert full["evictable"] == sum(span["num_pages"] for span in spans.values())
    assert all(pool["unit_bytes"] > 0 for pool in view["pools"])
    assert len(view["namespaces"]) == 2
    assert sum(name["tokens"] for name in view["namespaces"]) == sum(
        span["end"] - span["start"] for span in spans.values()
    )


def test_no_salt_and_no_prompt_is_told(server: ServerProcess) -> None:
    text = server.client.get("/cache").text

    assert "secret" not in text
    assert 'tokens":[' not in text
    assert "input_ids" not in text


def test_a_limit_keeps_ancestors(server: ServerProcess) -> None:
    whole = server.get("/cache")["spans"]
    view = server.get("/cache?max_spans=2")

    ids = {span["id"] for span in view["spans"]}
    assert 1 <= len(ids) <= 2
    assert view["spans_left_out"] == len(whole) - len(ids)
    assert all(span["parent"] == 0 or span["parent"] in ids for span in view["spans"])


def _numbers(browser: Chrome) -> dict[str, Any]:
    """Return what the page shows, as numbers."""

    def number(id: str) -> int:
        return int(browser.find_element(By.ID, id).text.split(" · ")[0].replace(",", ""))

    pools = {
        name: tuple(number(f"{name}-{part}") for part in ("size", "evictable", "free"))
        for name in ("full", "swa", "rings")
    }
    drawn = browser.find_elements(By.CSS_SELECTOR, "#spans > g")
    return {
        "pools": pools,
        "prompt": number("total-prompt_tokens"),
        "cached": number("total-cached_tokens"),
        "spans": {int(group.get_attribute("data-span") or 0) for group in drawn},
    }


def _wanted(view: dict[str, Any]) -> dict[str, Any]:
    return {
        "pools": {p["name"]: (p["capacity"], p["evictable"], p["free"]) for p in view["pools"]},
        "prompt": view["counters"]["prompt_tokens"],
        "cached": view["counters"]["cached_tokens"],
        "spans": {span["id"] for span in view["spans"]},
    }


def test_the_page_shows_what_the_server_tells_and_follows_it(
    server: ServerProcess, browser: Chrome
) -> None:
    browser.get(server.url)
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#spans > g"), "spans are drawn")
    before = server.get("/cache")
    wait_for(lambda: _numbers(browser) == _wanted(before), "the page agrees with /cache")

    server.generate([*SHARED, *[11] * 40], max_new_tokens=3, ignore_eos=True)
    wait_idle(server)
    after = server.get("/cache")
    assert len(after["spans"]) > len(before["spans"])
    wait_for(lambda: _numbers(browser) == _wanted(after), "the page follows the server")
    log = texts_of(browser, "#log li")
    assert any("came from the cache" in line for line in log)
    [memory] = texts_of(browser, "#memory-rows tr")
    assert memory.startswith("0 ")
    assert memory.count("iB") + memory.count(" B") == 6
    assert complaints(browser) == []


def test_a_running_request_is_seen_at_work(server: ServerProcess, browser: Chrome) -> None:
    browser.get(server.url)
    stream = server.stream([*SHARED, 3], max_new_tokens=6000, ignore_eos=True)
    next(stream)

    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#requests li"), "it is listed")
    [text] = texts_of(browser, "#requests li")
    locked = browser.find_elements(By.CSS_SELECTOR, "#spans .locked")
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]

    assert "row 0 · decode" in text
    assert "of at most 6,602" in text
    assert locked
    wait_for(lambda: not browser.find_elements(By.CSS_SELECTOR, "#spans .locked"))
    assert not browser.find_elements(By.CSS_SELECTOR, "#requests li")
    assert complaints(browser) == []
