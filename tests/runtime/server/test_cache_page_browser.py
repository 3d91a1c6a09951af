"""The page at `/`, in a real browser, shows what `/cache` tells, and says when nobody tells."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from runtime.cache_messages import NamespaceView, PoolView
from runtime.config import ServerConfig
from tests.runtime.server.live import (
    POLL_MS,
    LiveServer,
    at,
    classes,
    drawn,
    log_of,
    opened,
    show,
    state_of,
    text_of,
)
from tests.testing.browser import chromium, complaints, texts_of, wait_for
from tests.testing.cache_views import counters, many_spans, small_view, span, view_of

KEY = "sk-window"
KEYED = ServerConfig(model_path="/m", served_model_name="tiny", api_key=KEY)
PLAIN = ServerConfig(model_path="/m", served_model_name="tiny")
ANSWER_LIMIT_S = "runtime.server.cache_page.ANSWER_LIMIT_S"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A browser for all tests of this module."""
    with chromium() as found:
        yield found


@pytest.fixture
def live() -> Iterator[LiveServer]:
    """A server with a small view."""
    server = LiveServer(PLAIN)
    server.engine.view = small_view()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Chrome, live: LiveServer) -> Chrome:
    """The page of `live`, showing its view."""
    return opened(browser, live)


def test_the_page_shows_the_numbers_of_the_server(page: Chrome) -> None:
    assert text_of(page, "full-size") == "2,000 · 2 GiB"
    assert text_of(page, "full-used") == "100 · 100 MiB"
    assert text_of(page, "full-evictable") == "500 · 500 MiB"
    assert text_of(page, "full-free") == "1,400 · 1.4 GiB"
    assert [text_of(page, f"swa-{part}") for part in ("used", "evictable", "free")] == [
        "7",
        "33",
        "20",
    ]
    assert text_of(page, "rings-used") == "1"
    assert text_of(page, "hit-rate") == "37.5 %"
    assert text_of(page, "total-evicted_pages") == "3"
    assert text_of(page, "tree-size") == "4 spans shown, 4 resume points, 2 namespaces"
    assert text_of(page, "requests-size") == "2 running, 3 waiting"
    first, second = texts_of(page, "#requests li")
    assert "row 0 · prefill" in first
    assert "matched 512 | replays to 600 | committed 700 | scheduled 900 | total 1,200" in first
    assert "row 1 · decode" in second
    assert complaints(page) == []


def test_spans_are_drawn_as_what_they_are(page: Chrome) -> None:
    assert drawn(page) == 4
    assert {"age0", "locked"} <= classes(page, "#span-1")
    assert "tomb" not in classes(page, "#span-1")
    assert {"age3", "tomb"} <= classes(page, "#span-3")
    assert "locked" not in classes(page, "#span-3")
    assert "age5" in classes(page, "#span-9")
    assert (at(page, "#span-1 .points").get_attribute("d") or "").count("M") == 1
    assert (at(page, "#span-1 .pins").get_attribute("d") or "").count("M") == 1
    boxes = {n: at(page, f"#span-{n} .box").rect for n in (1, 3, 4, 9)}
    assert boxes[1]["y"] == boxes[4]["y"] < boxes[3]["y"] < boxes[9]["y"]
    assert boxes[4]["x"] == boxes[3]["x"] >= boxes[1]["x"] + boxes[1]["width"]
    assert texts_of(page, "#names text") == [
        "namespace 00000000 · 1,288 tokens",
        "namespace 00000001 · 300 tokens",
    ]


def test_pointing_at_a_span_tells_about_it(page: Chrome) -> None:
    ActionChains(page).move_to_element(at(page, "#span-1 .box")).perform()

    wait_for(lambda: "300 (prompt end, age 5)" in text_of(page, "details-list"))
    told = text_of(page, "details-list")
    assert "512 (branch, age 0, 1 pin)" in told
    assert "2: 1, 2" in told

    ActionChains(page).move_to_element(at(page, "#span-3 .box")).perform()
    wait_for(lambda: "none: a tombstone" in text_of(page, "details-list"))
    assert "path" in classes(page, "#span-1")


def test_the_tree_can_be_walked_with_the_keyboard(page: Chrome) -> None:
    tree = at(page, "#scroller")

    def active() -> str | None:
        return tree.get_attribute("aria-activedescendant")

    tree.send_keys(Keys.ARROW_DOWN)
    assert active() == "span-1"
    tree.send_keys(Keys.ARROW_RIGHT)
    assert active() == "span-4"
    assert "512 to 1,100" in text_of(page, "details-list")
    tree.send_keys(Keys.ARROW_LEFT, Keys.END)
    assert active() == "span-9"
    assert at(page, "#span-9").get_attribute("aria-selected") == "true"
    label = at(page, "#span-9").get_attribute("aria-label") or ""
    assert label.startswith("Span 9, positions 0 to 300, 1 resume point, 0 locks")
    tree.send_keys(Keys.ESCAPE)
    assert active() == ""


def test_the_tree_is_there_as_a_table_too(page: Chrome) -> None:
    at(page, "#as-table").click()

    assert not at(page, "#drawing").is_displayed()
    rows = texts_of(page, "#rows tr")
    assert len(rows) == 4
    assert rows[0].startswith("1 top 00000000 0 512 2 2 2 0 2 ")
    assert rows[2].endswith("none: a tombstone, whose pages still match")

    at(page, "#as-table").click()
    assert at(page, "#drawing").is_displayed()
    assert drawn(page) == 4


def test_changes_are_shown_and_noted(page: Chrome, live: LiveServer) -> None:
    before = small_view()
    spans = [replace(before.spans[0], points=[], num_points=0), *before.spans[2:]]
    more = counters(
        cached_tokens=2500, computed_prompt_tokens=3000, evicted_pages=6, evicted_points=3,
        replayed_tokens=140, retracted_requests=1, prompt_tokens=5500,
        no_point_tokens=110, point_evicted_tokens=55, page_evicted_tokens=550,
        never_seen_tokens=2200,
    )  # fmt: skip
    after = replace(before, spans=spans, counters=more, time_s=10.0)
    full = PoolView("full", 2000, 1997, 3)
    show(live, page, replace(after, pools=[full, *before.pools[1:]]))

    wait_for(lambda: drawn(page) == 3)
    assert {"tomb"} <= classes(page, "#span-1")
    assert text_of(page, "full-used") == "0 · 0 B"
    noted = log_of(page)
    for line in (
        "hit: 1,000 tokens came from the cache",
        "replay: 40 tokens past a tombstone computed again",
        "evicted 3 full pages",
        "evicted 1 resume point",
        "retracted 1 request into the tree",
    ):
        assert noted.count(line) == 1
    assert text_of(page, "uncached") == (
        "Prompt tokens computed: no resume point 2.0 %, resume point evicted 1.0 %, "
        "page evicted 10.0 %, never seen 40.0 %"
    )
    assert text_of(page, "hit-rate") == "45.5 %"
    assert text_of(page, "hit-now") == "lately 66.7 % of the prompt tokens came from the cache"
    assert complaints(page) == []


def test_an_emptied_tree_is_said_to_be_empty(page: Chrome, live: LiveServer) -> None:
    show(live, page, replace(view_of([]), counters=counters(), time_s=1.0))

    assert drawn(page) == 0
    assert at(page, "#empty").is_displayed()
    assert "the cache was flushed" in log_of(page)


def test_a_server_that_is_gone_is_said_to_be_gone(browser: Chrome) -> None:
    server = LiveServer(PLAIN)
    server.engine.view = small_view()
    page = opened(browser, server)

    server.stop()

    wait_for(lambda: state_of(page) == "gone")
    assert "The server is gone. No news since" in text_of(page, "trouble-text")
    assert text_of(page, "status") == "Server gone"
    assert at(page, "#trouble").is_displayed()
    assert log_of(page)[0] == "the server is gone"
    assert drawn(page) == 4, "what was seen last stays"


def test_a_server_that_does_not_answer_is_told_apart_and_comes_back(
    page: Chrome, live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ANSWER_LIMIT_S, 0.05)
    view, live.engine.view = live.engine.view, None

    wait_for(lambda: state_of(page) == "busy")
    assert "503: the scheduler is in a long step" in text_of(page, "trouble-text")

    monkeypatch.setattr(ANSWER_LIMIT_S, 60.0)
    # Before anybody answers: the page asks by itself as well, and puts the button away.
    at(page, "#retry").click()
    live.engine.view = view
    asked = live.engine.asked[-1]
    live.engine.loop.call_soon_threadsafe(live.engine.send, asked)
    wait_for(lambda: state_of(page) == "live")
    assert not at(page, "#trouble").is_displayed()


def test_a_view_that_cannot_be_drawn_is_no_news_and_the_next_one_is(
    page: Chrome, live: LiveServer
) -> None:
    live.engine.view = replace(small_view(), namespaces=[])
    wait_for(lambda: state_of(page) == "gone")
    assert "reload it" in text_of(page, "trouble-text")
    assert drawn(page) == 4

    live.engine.view = small_view()
    wait_for(lambda: state_of(page) == "live")
    assert "connected again" in log_of(page)[0]
    assert complaints(page) == []


def test_a_paused_page_asks_nothing(page: Chrome, live: LiveServer) -> None:
    at(page, "#pause").click()
    wait_for(lambda: state_of(page) == "paused")
    view = small_view()
    live.engine.view = replace(view, spans=view.spans[:1])

    page.execute_async_script(f"setTimeout(arguments[0], {3 * POLL_MS})")
    assert drawn(page) == 4

    at(page, "#pause").click()
    wait_for(lambda: drawn(page) == 1)


def test_the_key_is_asked_for_kept_in_the_tab_and_sent(browser: Chrome) -> None:
    server = LiveServer(KEYED)
    server.engine.view = small_view()
    try:
        browser.get(server.url)
        wait_for(lambda: state_of(browser) == "key")
        field = at(browser, "#key")
        assert field == browser.switch_to.active_element

        field.send_keys("wrong", Keys.ENTER)
        wait_for(lambda: "does not know that key" in text_of(browser, "key-note"))
        assert drawn(browser) == 0

        field.send_keys(KEY, Keys.ENTER)
        wait_for(lambda: drawn(browser) == 4)
        assert not at(browser, "#key-form").is_displayed()
        assert KEY not in browser.page_source

        browser.refresh()
        wait_for(lambda: drawn(browser) == 4)
        assert browser.execute_script("return localStorage.length + document.cookie.length") == 0
    finally:
        server.stop()


def test_a_key_of_any_letters_is_sent_as_the_server_reads_it(browser: Chrome) -> None:
    server = LiveServer(dataclasses.replace(KEYED, api_key="clé-ключ"))
    server.engine.view = small_view()
    try:
        browser.get(server.url)
        wait_for(lambda: state_of(browser) == "key")
        at(browser, "#key").send_keys("clé-ключ", Keys.ENTER)

        wait_for(lambda: drawn(browser) == 4)
    finally:
        server.stop()


def test_thousands_of_spans_are_drawn_as_far_as_they_can_be_seen(
    page: Chrome, live: LiveServer
) -> None:
    spans = many_spans(5000)
    Select(at(page, "#limit")).select_by_visible_text("10000")
    show(live, page, view_of(spans, spans_left_out=1234))

    wait_for(lambda: "5,000 spans shown" in text_of(page, "tree-size"))
    assert live.engine.asked[-1].max_spans == 10_000
    assert "1,234 less recent not shown" in text_of(page, "tree-size")
    at_top = drawn(page)
    assert 0 < at_top < 1000

    at(page, "#scroller").send_keys(Keys.END)
    last = at(page, "#scroller").get_attribute("aria-activedescendant")
    assert last is not None
    wait_for(lambda: at(page, f"#{last}").is_displayed())
    assert 0 < drawn(page) < 1000

    at(page, "#as-table").click()
    assert text_of(page, "table-note").startswith("Spans 1 to 100 of 5,000")
    at(page, "#next").click()
    assert text_of(page, "table-note").startswith("Spans 101 to 200 of 5,000")
    assert complaints(page) == []


def test_lanes_stay_where_they_are_when_recency_changes(page: Chrome, live: LiveServer) -> None:
    before = {n: at(page, f"#span-{n} .box").rect for n in (1, 3, 4, 9)}
    first, second, third, other = small_view().spans
    swapped = [
        replace(item, namespace=1 - item.namespace) for item in (other, first, third, second)
    ]
    names = [NamespaceView(0, "00000001", 300), NamespaceView(1, "00000000", 1288)]
    show(live, page, replace(small_view(), spans=swapped, namespaces=names))

    assert {n: at(page, f"#span-{n} .box").rect for n in (1, 3, 4, 9)} == before


def test_what_the_server_says_is_text_and_never_markup(page: Chrome, live: LiveServer) -> None:
    evil = "<img id=evil src=x onerror=alert(1)>"
    view = view_of([span(5, 0, 0, 256)], namespaces=[NamespaceView(0, evil, 256)])
    show(live, page, replace(view, point_kinds=[evil]))
    at(page, "#scroller").send_keys(Keys.ARROW_DOWN)

    assert evil in text_of(page, "details-list")
    assert page.find_elements(By.ID, "evil") == []
    assert complaints(page) == []


def test_the_page_can_be_read_in_both_schemes(page: Chrome) -> None:
    def contrast() -> list[float]:
        ratios: Any = page.execute_script(CONTRAST)
        return [float(ratio) for ratio in ratios]

    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        assert min(contrast()) >= 4.5, scheme
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# WCAG contrast of every colour of text with what it stands on.
CONTRAST = """
const style = getComputedStyle(document.documentElement);
const light = (name) => {
  const hex = style.getPropertyValue(name).trim();
  const parts = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16) / 255);
  const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const pairs = [
  ...["--ink", "--soft"].flatMap((ink) => [[ink, "--panel"], [ink, "--ground"]]),
  ...["--used", "--age0", "--age1"].map((on) => ["--on-bar", on]),
  ...["--age2", "--age3", "--age4", "--age5", "--panel"].map((on) => ["--on-pale", on]),
];
return pairs.map(([ink, on]) => {
  const [a, b] = [light(ink), light(on)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
});
"""
