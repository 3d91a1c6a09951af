"""What the front makes of requests and of replicas that answer, refuse and die."""

import asyncio
import json
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from runtime.replicas.board import Board
from runtime.replicas.front import Front
from runtime.replicas.prompt_keys import PromptKeys
from runtime.replicas.upstream import Head, HttpRequest
from tests.testing.fake_fleet import Answer, Client, FakeFleet, dies, replies

EVENTS = b"text/event-stream"
STREAM = Head(200, [(b"content-type", EVENTS)])
OK = replies(b"{}")


class ByteKeys:
    """A prompt is the body: a token for each byte."""

    async def of(self, request: HttpRequest) -> PromptKeys | None:
        if request.path != "/generate":
            return None
        tokens = np.frombuffer(request.body, np.uint8).astype(np.int32)
        return PromptKeys.of(tokens, block_size=4, namespace="", key=b"k")


def make(**answers: Answer) -> tuple[Front, FakeFleet]:
    fleet = FakeFleet(Board(), **answers)
    return Front(fleet, fleet.board, ByteKeys()), fleet


def ask(front: Front, method: str, path: str, body: bytes = b"", **headers: str) -> Client:
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return asyncio.run(Client(front).call(method, path, body, pairs))


def replicas_of(fleet: FakeFleet) -> list[str]:
    return [name for name, _ in fleet.sent]


def test_a_prompt_goes_where_its_beginning_went_and_others_spread() -> None:
    front, fleet = make(a=OK, b=OK)
    bodies = [b"x" * 900, b"y" * 900]

    for body in (*bodies, *bodies):
        assert ask(front, "POST", "/generate", body + b"more").body == b"{}"

    names = replicas_of(fleet)
    assert names[:2] == names[2:]
    assert all(view["requests"] == 0 for view in fleet.board.describe().values())


def test_headers_pass_except_for_what_was_judged_here() -> None:
    front, fleet = make(a=replies(b"no", 429, b"text/plain"))

    told = ask(
        front,
        "POST",
        "/v1/chat/completions?x=%2Fy",
        b"body",
        x_api_key="k",
        traceparent="t",
        origin="o",
        sec_fetch_site="cross-site",
    )

    assert (told.status, told.body, told.ended) == (429, b"no", True)
    assert told.headers == {b"content-type": b"text/plain"}
    [(_, request)] = fleet.sent
    assert (request.method, request.path, request.body) == (
        "POST",
        "/v1/chat/completions?x=%2Fy",
        b"body",
    )
    assert list(request.headers) == [(b"x-api-key", b"k"), (b"traceparent", b"t")]


def test_a_replica_that_dies_before_it_says_anything_is_replaced_by_another() -> None:
    front, fleet = make(a=dies(), b=OK)

    told = ask(front, "POST", "/generate", b"x")

    assert (told.status, told.body) == (200, b"{}")
    assert replicas_of(fleet) == ["a", "b"]


def test_where_all_die_the_client_is_told_so_in_its_dialect() -> None:
    front, fleet = make(a=dies(), b=dies())

    told = ask(front, "POST", "/v1/completions", b"{}")

    assert told.status == 503
    assert told.headers[b"retry-after"]
    assert json.loads(told.body)["error"]["type"]
    assert len(fleet.sent) == 3


def test_a_draining_replica_s_refusal_is_retried_on_another() -> None:
    front, fleet = make(a=replies(b"draining", 503), b=OK)
    assert ask(front, "POST", "/generate", b"x").status == 200
    assert replicas_of(fleet) == ["a", "b"]

    front, fleet = make(a=replies(b"draining", 503))
    told = ask(front, "POST", "/generate", b"x")
    assert (told.status, told.body, len(fleet.sent)) == (503, b"draining", 1)


def test_a_stream_whose_replica_dies_ends_with_an_error_and_is_not_tried_again() -> None:
    front, fleet = make(a=dies(STREAM, b"data: 1\n\n"), b=OK)

    told = ask(front, "POST", "/v1/chat/completions", b"{}")

    assert told.ended
    *events, last = [event for event in told.body.decode().split("\n\n") if event]
    assert events == ["data: 1"]
    assert "error" in json.loads(last.strip().removeprefix("data: "))
    assert replicas_of(fleet) == ["a"]


def test_a_whole_reply_that_breaks_off_does_not_seem_to_end() -> None:
    front, _ = make(a=dies(Head(200, [(b"content-length", b"9")]), b"half"))
    client = Client(front)

    with pytest.raises(ConnectionError):
        asyncio.run(client.call("POST", "/generate", b"x"))
    assert not client.ended


def test_a_client_that_leaves_ends_the_replica_s_work() -> None:
    begun = asyncio.Event()

    async def endless(request: HttpRequest) -> AsyncGenerator[Head | bytes, None]:
        yield STREAM
        begun.set()
        await asyncio.Event().wait()

    front, fleet = make(a=endless)

    async def test() -> None:
        client = Client(front, begun.wait)
        await asyncio.wait_for(client.call("POST", "/generate", b"x"), 30)
        assert not client.ended

    asyncio.run(test())
    assert fleet.open_ == 0
    assert fleet.board.describe()["a"]["requests"] == 0


def test_a_body_that_no_server_reads_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.replicas.front.MAX_BODY_BYTES", 10)
    front, fleet = make(a=OK)

    assert ask(front, "POST", "/generate", b"x" * 11).status == 413
    assert fleet.sent == []


def test_a_path_below_replicas_is_of_that_one() -> None:
    front, fleet = make(a=OK, b=OK)

    ask(front, "GET", "/replicas/b/cache?max_spans=3")

    [(name, request)] = fleet.sent
    assert (name, request.path) == ("b", "/cache?max_spans=3")
    assert ask(front, "GET", "/replicas/c/cache").status == 503


def test_probes_are_answered_by_a_replica_and_refused_where_there_is_none() -> None:
    front, fleet = make(a=replies(b"", 200))
    assert [ask(front, "GET", path).status for path in ("/health", "/ready")] == [200, 200]

    fleet.answers.clear()
    assert [ask(front, "GET", path).status for path in ("/health", "/ready")] == [503, 503]


def keeps(number: str) -> Answer:
    """Return a replica that keeps one response."""

    async def answer(request: HttpRequest) -> AsyncGenerator[Head | bytes, None]:
        known = request.method == "POST" or request.path.partition("?")[0].endswith(number)
        yield Head(200 if known else 404, [])
        yield request.path.encode()

    return answer


def test_a_stored_response_is_found_and_continued_where_it_is() -> None:
    front, fleet = make(a=keeps("resp_1"), b=keeps("resp_2"))

    assert ask(front, "GET", "/v1/responses/resp_2").status == 200
    assert ask(front, "DELETE", "/v1/responses/resp_2?cache_salt=s").status == 200
    assert fleet.sent[-1][0] == "b"
    assert fleet.sent[-1][1].method == "DELETE"
    body = {"previous_response_id": "resp_2", "cache_salt": "s/"}
    assert ask(front, "POST", "/v1/responses", json.dumps(body).encode()).status == 200
    assert fleet.sent[-1][0] == "b"
    assert fleet.sent[-2][1].path == "/v1/responses/resp_2?cache_salt=s%2F"
    assert ask(front, "GET", "/v1/responses/resp_3").status == 404


def test_an_unknown_response_is_continued_by_any_replica() -> None:
    front, fleet = make(a=keeps("resp_1"))

    for body in (b'{"previous_response_id": "no/such"}', b'{"previous_response_id": 1}', b"{"):
        assert ask(front, "POST", "/v1/responses", body).status == 200
    assert all(request.method == "POST" for _, request in fleet.sent)
