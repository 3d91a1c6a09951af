"""`/cache` tells the cache, in bounds; the page at `/` may run its own script and no other."""

import asyncio
import base64
import hashlib
import json
import re

import msgspec
import pytest
from msgspec.structs import replace

from runtime.cache_messages import NamespaceView, PointView, RequestView, SpanView
from runtime.config import ServerConfig
from runtime.server.cache_page import MAX_QUESTIONS, MAX_SPANS
from tests.runtime.server.engine import Server, served
from tests.testing.cache_views import small_view, view_of

KEY = "sk-window"
KEYED = ServerConfig(model_path="/m", served_model_name="tiny", api_key=KEY)
WORST = 2**31 - 1
MODULE = "runtime.server.cache_page"


@served()
async def test_the_view_is_told_as_json(server: Server) -> None:
    view = small_view()
    server.engine.view = view
    server.manager.ready.info["ring_bytes"] = 2000

    reply = await server.client.get("/cache")

    assert reply.headers["cache-control"] == "no-store"
    told = reply.json()
    wanted = json.loads(msgspec.json.encode(view))
    for pool in wanted["pools"]:
        pool["unit_bytes"] = 2000 if pool["name"] == "rings" else None
    del wanted["call_id"], wanted["type"]
    assert told.pop("rank_memory") == []
    assert (told.pop("replica"), told.pop("replicas")) == (0, 1)
    assert told == wanted
    del server.manager.ready.info["ring_bytes"]


@served()
async def test_the_limit_reaches_the_scheduler(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.INTERVAL_S", 0.0)

    for query in ("", "?max_spans=1", "?max_spans=10000"):
        assert (await server.client.get(f"/cache{query}")).status_code == 200

    assert [asked.max_spans for asked in server.engine.asked] == [1000, 1, 10_000]


@served(ServerConfig(tp_size=4, dp_size=4, enable_dp_attention=True))
async def test_a_client_chooses_whose_cache_it_sees(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.INTERVAL_S", 0.0)

    told = (await server.client.get("/cache?replica=3")).json()
    refused = await server.client.get("/cache?replica=4")

    assert (told["replica"], told["replicas"]) == (3, 4)
    assert [asked.replica for asked in server.engine.asked] == [3]
    assert refused.status_code == 400
    assert "replica must be one whole number from 0 to 3" in refused.text


@pytest.mark.parametrize(
    "value", ["0", "-1", "10001", "", "x", "1.5", "1e3", "+5", "٣", "9" * 5000, "1&max_spans=2"]
)
@served()
async def test_a_limit_that_is_none_is_refused(server: Server, value: str) -> None:
    reply = await server.client.get(f"/cache?max_spans={value}")

    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert "max_spans must be one whole number from 1 to 10000" in message
    assert len(message) < 200
    assert not server.engine.asked


@served()
async def test_a_body_is_small_whatever_the_tree(server: Server) -> None:
    """The most that `cache_view` lets through, with the longest numbers there are."""
    point = PointView(WORST, 3, WORST, WORST)
    spans = [
        SpanView(
            id=WORST,
            parent=WORST,
            namespace=number,
            start=WORST,
            end=WORST,
            num_pages=WORST,
            pages=[WORST] * 4,
            num_points=WORST,
            points=[point] * 2,
            locks=WORST,
            age=WORST,
            children=WORST,
        )
        for number in range(MAX_SPANS)
    ]
    many = [NamespaceView(k, "f" * 8, WORST) for k in range(MAX_SPANS)]
    request = RequestView(2**49, 9999, "prefill", 9999, *[WORST] * 6)
    server.engine.view = replace(
        view_of([]), spans=spans, namespaces=many, requests=[request] * 512
    )

    reply = await server.client.get("/cache?max_spans=10000")

    assert len(reply.json()["spans"]) == MAX_SPANS
    assert len(reply.content) <= 4 * 2**20


@served()
async def test_many_who_ask_the_same_share_an_answer(server: Server) -> None:
    replies = await asyncio.gather(*(server.client.get("/cache") for _ in range(20)))

    assert {reply.status_code for reply in replies} == {200}
    assert len(server.engine.asked) == 1


@served()
async def test_the_scheduler_is_asked_one_question_at_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.INTERVAL_S", 0.0)
    view, server.engine.view = server.engine.view, None
    asking = [
        asyncio.ensure_future(server.client.get(f"/cache?max_spans={k}"))
        for k in range(1, MAX_QUESTIONS + 4)
    ]
    while not (server.engine.asked and sum(task.done() for task in asking) == 3):
        await asyncio.sleep(0)

    assert len(server.engine.asked) == 1
    refused = [task.result() for task in asking if task.done()]
    assert {reply.status_code for reply in refused} == {429}
    assert refused[0].headers["retry-after"] == "1"

    server.engine.view = view
    server.engine.send(server.engine.asked[0])
    replies = await asyncio.gather(*asking)
    assert sum(reply.status_code == 200 for reply in replies) == MAX_QUESTIONS


@served()
async def test_a_busy_scheduler_is_a_503_and_its_late_answer_serves_the_next(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.ANSWER_LIMIT_S", 0.02)
    view, server.engine.view = server.engine.view, None

    replies = [await server.client.get("/cache") for _ in range(3)]

    assert {reply.status_code for reply in replies} == {503}
    assert "long step" in replies[0].json()["error"]["message"]
    assert len(server.engine.asked) == 1, "a question that is under way is not asked again"
    server.engine.view = view
    server.engine.send(server.engine.asked[0])
    monkeypatch.setattr(f"{MODULE}.ANSWER_LIMIT_S", 5.0)
    assert (await server.client.get("/cache")).status_code == 200


@served()
async def test_a_dead_engine_is_a_503(server: Server) -> None:
    server.manager.engine_died("killed")

    reply = await server.client.get("/cache")

    assert reply.status_code == 503
    assert "killed" in reply.json()["error"]["message"]


@served(KEYED)
async def test_the_view_needs_the_key_and_the_page_does_not(server: Server) -> None:
    assert (await server.client.get("/cache")).status_code == 401
    headers = {"Authorization": f"Bearer {KEY}"}
    assert (await server.client.get("/cache", headers=headers)).status_code == 200
    page = await server.client.get("/")
    assert page.status_code == 200
    assert KEY not in page.text


@served()
async def test_the_page_may_load_nothing_and_run_nothing_else(server: Server) -> None:
    reply = await server.client.get("/")

    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    policy = dict(
        part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", reply.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    elsewhere = set(re.findall(r"https?://[^\s\"'>]+", reply.text))
    assert elsewhere == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", reply.text)
