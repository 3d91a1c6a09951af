"""Damaged bodies for every route of an application over a scripted scheduler."""

import asyncio

from hypothesis import strategies as st

from tests.conftest import SEED
from tests.fuzz.bodies import BODIES, judge, parts_of
from tests.fuzz.target import Target
from tests.runtime.server.engine import Server, serving

EXAMPLES = 200


def test_a_damaged_body_is_answered_or_refused_as_documented() -> None:
    with asyncio.Runner() as runner:
        context = serving(v4=True)
        server = runner.run(context.__aenter__())
        document = runner.run(server.client.get("/openapi.json")).json()
        target = Target("bodies", BODIES, lambda data: runner.run(post(server, document, data)))
        try:
            for path in target.corpus():
                target.check(path.read_bytes())
            target.run(EXAMPLES, seed=SEED)
        finally:
            runner.run(context.__aexit__(None, None, None))


async def post(server: Server, document: dict[str, object], data: bytes) -> None:
    parts = parts_of(data)
    if parts is None:
        return
    path, body = parts
    headers = {"Content-Type": "application/json"}
    reply = await server.client.post(path, content=body, headers=headers)

    judge(document, path, reply.status_code, reply.headers["content-type"], reply.content)


def test_inputs_name_a_route_and_hold_a_body() -> None:
    assert parts_of(b"/generate\n{}") == ("/generate", b"{}")
    assert parts_of(b"/nowhere\n{}") is None
    assert isinstance(BODIES, st.SearchStrategy)
