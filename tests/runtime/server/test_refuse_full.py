"""A full queue: what generates is refused unread, all else is answered."""

from starlette.types import Message

from runtime.config import ServerConfig
from runtime.server.refuse_full import GENERATING_PATHS, RefuseFull
from tests.runtime.server.engine import Server, served

NO_ROOM = ServerConfig(model_path="/m", max_queued_requests=0)
NO_JSON = b"no JSON at all"
JSON = {"content-type": "application/json"}


async def status(server: Server, path: str, body: bytes = NO_JSON) -> int:
    return (await server.client.post(path, content=body, headers=JSON)).status_code


@served(NO_ROOM)
async def test_no_body_is_read_while_nothing_more_can_wait(server: Server) -> None:
    for path in sorted(GENERATING_PATHS):
        server.manager.rows = 0
        full = await server.client.post(path, content=NO_JSON, headers=JSON)
        server.manager.rows = 1

        assert (full.status_code, full.headers["retry-after"]) == (429, "1"), path
        assert "try again later" in full.text
        assert await status(server, path) == 400


@served(NO_ROOM)
async def test_all_else_is_answered_and_refusals_are_counted(server: Server) -> None:
    server.manager.rows = 0

    assert await status(server, "/generate") == 429
    assert await status(server, "/tokenize", b'{"text": "a"}') == 200
    assert await status(server, "/abort_request", b'{"rid": "a"}') == 200
    assert (await server.client.get("/health")).status_code == 200
    metrics = (await server.client.get("/metrics")).text
    counted = [line for line in metrics.splitlines() if "umbra:calls_refused_total{" in line]
    assert [line for line in counted if 'reason="QueueFull"' in line and line.endswith(" 1.0")]


@served()
async def test_a_server_that_stops_or_has_no_engine_reads_no_body(server: Server) -> None:
    server.manager.draining = True
    assert await status(server, "/v1/completions") == 503

    server.manager.draining = False
    server.manager.engine_died("on purpose")
    assert await status(server, "/v1/completions") == 503


@served(NO_ROOM)
async def test_the_whole_body_is_dropped_before_the_refusal_is_sent(server: Server) -> None:
    server.manager.rows = 0
    order: list[str] = []

    def body(more: bool) -> Message:
        return {"type": "http.request", "body": b"x", "more_body": more}

    async def refuse(messages: list[Message]) -> list[str]:
        order.clear()

        async def receive() -> Message:
            order.append("receive")
            return messages.pop(0)

        async def send(message: Message) -> None:
            order.append(message["type"])

        scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}
        await RefuseFull(server.app, manager=server.manager)(scope, receive, send)
        return order

    sent = ["http.response.start", "http.response.body"]
    assert await refuse([body(True), body(False)]) == ["receive", "receive", *sent]
    assert await refuse([body(True), {"type": "http.disconnect"}]) == ["receive", "receive"]
