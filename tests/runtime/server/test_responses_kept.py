"""`/v1/responses`: conversations go on from what is kept, and prompts extend earlier ones."""

import pytest

from runtime.config import ServerConfig
from runtime.messages import Generate, unpack_ids
from tests.runtime.server.engine import Server, served
from tests.runtime.server.test_responses_api import HI, OFF, PATH, TOOLS, Json, create, events
from tests.runtime.server.test_responses_reply import CALLS


def results(response: Json) -> list[Json]:
    """Return an output for each call of a response."""
    calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": name, "output": "r"} for name in calls]


def _prompt(server: Server, request: Generate) -> str:
    ids = [int(i) for i in unpack_ids(request.input_ids)]
    return server.engine.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("by_id", [True, False])
@served(v4=True)
async def test_results_of_calls_extend_the_prompt(server: Server, by_id: bool) -> None:
    server.engine.reply = CALLS
    body: Json = {**HI, **TOOLS, "instructions": "Be brief."}
    first = await create(server, body)

    if by_id:
        then: Json = {"previous_response_id": first["id"], "input": results(first)}
    else:
        hi = {"role": "user", "content": "hi"}
        then = {"input": [hi, *first["output"], *results(first)], "store": False}
    await create(server, {**body, **then})

    asked, extended = (request.input_ids for request in server.engine.requests)
    assert extended.startswith(asked)
    rest = [int(i) for i in unpack_ids(extended[len(asked) :])]
    answer = server.engine.tokenizer.encode(CALLS, add_special_tokens=False).ids
    assert rest[: len(answer)] == answer


@served(v4=True)
async def test_instructions_are_not_carried_over(server: Server) -> None:
    first = await create(server, {**HI, **OFF, "instructions": "Be a pirate."})

    again = {**OFF, "previous_response_id": first["id"], "input": "and?"}
    await create(server, {**again, "instructions": "Be brief."})
    await create(server, again)

    prompts = [_prompt(server, request) for request in server.engine.requests]
    assert "pirate" in prompts[0]
    assert [text.count("brief") for text in prompts] == [0, 1, 0]
    assert all("pirate" not in text and "hello" in text for text in prompts[1:])


@served(v4=True)
async def test_a_conversation_goes_on_and_branches(server: Server) -> None:
    first = await create(server, {**HI, **OFF})
    told = await events(server, {**OFF, "previous_response_id": first["id"], "input": "two"})
    second = told[-1]["response"]
    for earlier in (second, first):
        body = {**OFF, "previous_response_id": earlier["id"], "input": "three"}
        assert (await create(server, body))["previous_response_id"] == earlier["id"]

    long, branch = (_prompt(server, request) for request in server.engine.requests[2:])
    assert (long.count("hello"), branch.count("hello")) == (2, 1)
    assert ("two" in long, "two" in branch) == (True, False)


@served(v4=True)
async def test_a_response_is_kept_until_it_is_deleted(server: Server) -> None:
    made = await create(server, HI)
    path = f"{PATH}/{made['id']}"

    assert (await server.client.get(path)).json() == made
    gone = await server.client.delete(path)
    assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        missing = await server.client.request(method, path)
        assert missing.status_code == 404
        error = missing.json()["error"]
        assert "kept in memory" in error["message"]
        assert "do not survive a restart" in error["message"]
        assert error["type"] == "not_found_error"


@served(v4=True)
async def test_what_is_not_stored_is_not_found(server: Server) -> None:
    made = await create(server, {**HI, "store": False})

    assert (await server.client.get(f"{PATH}/{made['id']}")).status_code == 404
    refused = await server.post(PATH, {"input": "x", "previous_response_id": made["id"]})
    error = refused.json()["error"]
    assert refused.status_code == 404
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )
    assert len(server.engine.requests) == 1


@served(v4=True)
async def test_items_can_be_referred_to(server: Server) -> None:
    server.engine.reply = "why</think>hello"
    made = await create(server, HI)
    references = [{"type": "item_reference", "id": item["id"]} for item in made["output"]]
    hi, more = ({"role": "user", "content": text} for text in ("hi", "and?"))

    await create(server, {"input": [hi, *references, more]})
    await create(server, {"previous_response_id": made["id"], "input": "and?"})
    refused = await server.post(PATH, {"input": [hi, {"id": "msg_0"}]})

    _, referred, continued = server.engine.requests
    assert referred.input_ids == continued.input_ids
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "item_not_found"


@served(v4=True)
async def test_reasoning_comes_back_from_what_carries_it(server: Server) -> None:
    server.engine.reply = CALLS
    body: Json = {**HI, **TOOLS, "include": ["reasoning.encrypted_content"], "store": False}
    made = await create(server, body)
    why, *rest = made["output"]
    slim = {"type": "reasoning", "summary": [], "encrypted_content": why["encrypted_content"]}
    hi = {"role": "user", "content": "hi"}

    await create(server, {**body, "input": [hi, slim, *rest, *results(made)]})
    await create(server, {**body, "input": [hi, why, *rest, *results(made)]})

    _, slimmed, whole = server.engine.requests
    assert slimmed.input_ids == whole.input_ids


@served(v4=True)
async def test_a_response_is_found_with_its_own_salt_only(server: Server) -> None:
    made = await create(server, {**HI, "cache_salt": "a"})
    path = f"{PATH}/{made['id']}"
    after = {"previous_response_id": made["id"], "input": "x"}
    item = {"input": [{"id": made["output"][0]["id"]}]}

    for salt in ({}, {"cache_salt": "b"}, {"cache_salt": "a", "extra_key": "c"}):
        assert (await server.client.get(path, params=salt)).status_code == 404
        assert (await server.client.delete(path, params=salt)).status_code == 404
        assert (await server.post(PATH, {**after, **salt})).status_code == 404
        assert (await server.post(PATH, {**item, **salt})).status_code == 400
    assert (await server.client.get(path, params={"cache_salt": "a"})).json() == made
    await create(server, {**after, "cache_salt": "a"})
    assert (await server.client.delete(path, params={"cache_salt": "a"})).status_code == 200


@served(ServerConfig(api_key="secret"), v4=True)
async def test_a_key_is_wanted_for_what_is_kept(server: Server) -> None:
    key = {"Authorization": "Bearer secret"}
    refused = await server.post(PATH, HI)
    made = (await server.post(PATH, HI, **key)).json()
    path = f"{PATH}/{made['id']}"

    assert refused.status_code == 401
    assert (await server.client.get(path)).status_code == 401
    assert (await server.client.delete(path)).status_code == 401
    assert (await server.client.get(path, headers=key)).json() == made


@served(v4=True)
async def test_a_long_history_goes_on_until_no_request_could_have_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # V4's format drops earlier reasoning, so that a long history may have a short prompt.
    part = {"type": "reasoning_text", "text": "why " * 40_000}
    why = {"type": "reasoning", "summary": [], "content": [part]}
    items = [{"role": "user", "content": "hi"}, why, {"role": "user", "content": "and?"}]
    first = await create(server, {**OFF, "input": items})
    body = {**OFF, "previous_response_id": first["id"], "input": "so?"}

    monkeypatch.setattr("runtime.server.responses_api.LONG_BODY_BYTES", 100_000)
    again = await create(server, body)
    monkeypatch.setattr("runtime.server.responses_api.MAX_BODY_BYTES", 100_000)
    refused = await server.post(PATH, {**body, "previous_response_id": again["id"]})

    assert "so?" in _prompt(server, server.engine.requests[-1])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "previous_response_id"


@served(v4=True)
async def test_the_tokens_of_a_prompt_are_counted_without_computing_it(server: Server) -> None:
    server.engine.reply = "hello"
    body: Json = {**HI, **OFF, **TOOLS}
    first = await create(server, body)
    asked = len(server.engine.requests)

    then = {**body, "previous_response_id": first["id"]}
    counts = [await server.post(f"{PATH}/input_tokens", one) for one in (body, then)]
    wrong = await server.post(f"{PATH}/input_tokens", {**body, "tools": [{"type": "mcp"}]})

    assert len(server.engine.requests) == asked
    told = [count.json() for count in counts]
    assert told[0] == {
        "object": "response.input_tokens",
        "input_tokens": first["usage"]["input_tokens"],
    }
    assert told[1]["input_tokens"] > told[0]["input_tokens"] + 1
    assert wrong.json()["error"]["param"] == "tools"


@served(v4=True)
async def test_a_kept_response_is_no_stream(server: Server) -> None:
    kept = f"{PATH}/{(await create(server, HI))['id']}"

    for query, status in (("stream=true", 400), ("starting_after=1", 400), ("stream=false", 200)):
        reply = await server.client.get(f"{kept}?{query}")
        assert reply.status_code == status
    cancelled = await server.post(f"{kept}/cancel", {})
    assert cancelled.status_code == 404
    assert "close its connection" in cancelled.json()["error"]["message"]
