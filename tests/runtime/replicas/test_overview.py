"""Operations reach every replica, and facts of all come as one reply."""

import asyncio
import json

from prometheus_client.parser import text_string_to_metric_families

from runtime.replicas.board import Board, RoutedRequest
from runtime.replicas.overview import EVERYWHERE, Overview
from runtime.replicas.upstream import HttpRequest
from tests.testing.fake_fleet import Answer, FakeFleet, dies, replies


def ask(path: str, **answers: Answer) -> tuple[int, str, list[str]]:
    """Return status, body, and which replicas got it."""
    fleet = FakeFleet(Board(), **answers)
    overview = Overview(fleet, fleet.board)
    assert path.partition("?")[0] in EVERYWHERE
    reply = asyncio.run(overview.everywhere(HttpRequest("POST", path, [], b"{}")))
    return reply.status_code, bytes(reply.body).decode(), [name for name, _ in fleet.sent]


def test_a_flush_is_of_all_and_fails_where_one_does() -> None:
    done, busy = replies(b"Cache flushed\n", kind=b"text/plain"), replies(b'{"error": 1}', 400)

    assert ask("/flush_cache", a=done, b=done) == (
        200,
        "a: Cache flushed\nb: Cache flushed\n",
        ["a", "b"],
    )
    assert ask("/flush_cache", a=done, b=busy, c=done) == (400, '{"error": 1}', ["a", "b", "c"])
    assert ask("/flush_cache", a=dies(), b=done)[0] == 503


def test_aborted_requests_are_counted_over_all() -> None:
    status, body, _ = ask(
        "/abort_request", a=replies(b'{"aborted": 2}'), b=replies(b'{"aborted": 1}')
    )

    assert (status, json.loads(body)) == (200, {"aborted": 3})


def test_loads_and_other_replies_tell_whose_they_are() -> None:
    one, two = replies(b'{"version": "1", "loads": [{"n": 1}]}'), replies(b'{"loads": [{"n": 2}]}')
    _, body, _ = ask("/v1/loads", a=one, b=two)
    assert json.loads(body) == {
        "version": "1",
        "loads": [{"n": 1, "replica": "a"}, {"n": 2, "replica": "b"}],
    }

    _, body, _ = ask("/get_load", a=replies(b'[{"n": 1}]'), b=replies(b'[{"n": 2}]'))
    assert json.loads(body) == [{"n": 1, "replica": "a"}, {"n": 2, "replica": "b"}]
    _, body, _ = ask("/stop_profile", a=replies(b'{"path": "x"}'), b=replies(b"none"))
    assert json.loads(body) == {"replicas": {"a": {"path": "x"}, "b": None}}


def test_metrics_of_the_living_and_of_the_front_are_one_text() -> None:
    text = replies(b"# TYPE x gauge\nx 1\n", kind=b"text/plain")

    status, body, _ = ask("/metrics", a=text, b=dies())

    families = {f.name: f for f in text_string_to_metric_families(body)}
    assert status == 200
    assert [s.labels for s in families["x"].samples] == [{"replica": "a"}]
    assert {s.labels["replica"] for s in families["umbra_front_served"].samples} == {"a", "b"}


def test_the_page_leads_to_each_replica() -> None:
    fleet = FakeFleet(Board(), a=replies(b""), b=replies(b""))
    overview = Overview(fleet, fleet.board)
    fleet.board.place(RoutedRequest(None), ["b"])

    page = bytes(overview.page().body).decode()
    assert '<a href="replicas/a/">' in page
    told = json.loads(bytes(overview.describe().body))["replicas"]
    assert (told["a"]["requests"], told["b"]["requests"]) == (0, 1)
