"""Tests of runtime.server.score: `/score` over a scripted engine."""

import asyncio
from typing import Any

import pytest

from runtime.messages import Generate, unpack_ids
from runtime.server.score import MAX_CHOICES
from runtime.server.tokenize import MAX_CHARS
from runtime.tokenizer.threads import LONG_CHARS
from tests.runtime.server.engine import (
    BOS,
    CONTEXT_TOKENS,
    USER,
    Server,
    served,
    text_ids,
    tokenised,
)

Monkey = pytest.MonkeyPatch


async def score(server: Server, **body: Any) -> Any:
    reply = await server.post("/score", body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def ids_of(request: Generate) -> list[int]:
    return [int(i) for i in unpack_ids(request.input_ids)]


@served()
async def test_the_prompt_tells_first_tokens_and_longer_choices_the_rest(server: Server) -> None:
    reply = await score(server, text="ab", choices=["y", "no", "nope"])

    first, *longer = server.engine.requests
    assert ids_of(first) == text_ids("ab")
    assert first.sampling.max_new_tokens == 1
    assert first.logprobs is not None
    assert first.logprobs.token_ids == tuple(sorted(text_ids("yn")))
    assert sorted(map(ids_of, longer)) == [text_ids("abno"), text_ids("abnope")]
    assert {(r.sampling.max_new_tokens, r.logprobs and r.logprobs.start) for r in longer} == {
        (0, 2)
    }
    rows = reply["choices"]
    assert rows[0] == {
        "token_ids": text_ids("y"),
        "token_texts": ["y"],
        "logprobs": [-1.5],
        "normalized_logprob": -1.5,
    }
    assert rows[2]["token_texts"] == ["n", "o", "p", "e"]
    assert rows[2]["logprobs"] == [-1.5] * 4
    assert reply["meta_info"] | {"id": ""} == {
        "id": "",
        "prompt_tokens": 2,
        "scored_from": 2,
        "cached_tokens": 3,
        "computed_tokens": 2 - 3 + 4 - 3 + 6 - 3,
    }


@served()
async def test_choices_by_themselves_have_no_first_value(server: Server) -> None:
    reply = await score(server, text="ab", choices=["y", "no"], unconditional=True)

    rows = [row["unconditional_logprobs"] for row in reply["choices"]]
    assert rows == [[None], [None, -1.5]]
    assert ids_of(server.engine.requests[-1]) == text_ids("no")


@served()
async def test_every_form_of_a_prompt_is_taken(server: Server) -> None:
    for prompt, ids in (
        ({"input_ids": [7, 8]}, [7, 8]),
        ({"prompt_parts": {"segments": ["a", [7]]}}, [*text_ids("a"), 7]),
        (
            {
                "prompt_parts": {
                    "messages": [{"role": "user", "content": "a"}],
                    "add_generation_prompt": False,
                }
            },
            [BOS, USER, *text_ids("a")],
        ),
    ):
        await score(server, choices=["y"], **prompt)
        assert ids_of(server.engine.requests[-1]) == ids


@served()
async def test_a_salt_keeps_scores_apart(server: Server) -> None:
    await score(server, text="a", choices=["y"], cache_salt="mine", priority=3)
    await score(server, text="a", choices=["y"])

    mine, plain = server.engine.requests
    assert mine.namespace != plain.namespace
    assert (mine.priority, plain.priority) == (3, 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a", "choices": []}, "1 to"),
        ({"text": "a", "choices": ["x"] * (MAX_CHOICES + 1)}, "1 to"),
        ({"text": "a", "choices": ["x" * MAX_CHARS, "x"]}, "choices may have"),
        ({"text": "a", "choices": ["x", ""]}, "choices[1] is empty"),
        ({"text": "a", "choices": [[]]}, "choices[0] is empty"),
        ({"text": "a", "choices": [[-1]]}, "must lie in"),
        ({"text": "", "choices": ["x"]}, "prompt is empty"),
        ({"choices": ["x"]}, "exactly one"),
        ({"text": "a", "input_ids": [1], "choices": ["x"]}, "exactly one"),
        ({"text": "a", "choices": "x"}, "choices"),
        ({"text": "a" * CONTEXT_TOKENS, "choices": ["x"]}, "has 400 tokens"),
        ({"prompt_parts": {"messages": [{"role": "user", "content": "a"}]}, "choices": ["<|eos|>"]},
         "control token"),
    ],
)  # fmt: skip
@served()
async def test_what_cannot_be_scored_is_refused(
    server: Server, body: dict[str, Any], message: str
) -> None:
    reply = await server.post("/score", body)

    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
    assert server.manager.in_flight == 0


@served()
async def test_long_choices_keep_no_short_text_waiting(server: Server, monkeypatch: Monkey) -> None:
    asked = tokenised(server, monkeypatch)
    half = "x" * (LONG_CHARS // 2)

    await server.post("/score", {"text": "a", "choices": [half, half, [7]]})

    assert asked[:2] == [1, LONG_CHARS]


@served()
async def test_a_full_queue_is_said_as_such(server: Server) -> None:
    server.engine.refuse = "queue_full"

    assert (await server.post("/score", {"text": "a", "choices": ["y"]})).status_code == 429


@served()
async def test_a_client_that_leaves_takes_its_scores_along(server: Server) -> None:
    server.engine.hold.clear()
    work = asyncio.ensure_future(server.post("/score", {"text": "a", "choices": ["no"]}))
    while not server.engine.requests:
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)

    assert server.manager.in_flight == 0


@served()
async def test_an_aborted_score_says_so(server: Server) -> None:
    server.engine.hold.clear()
    work = asyncio.ensure_future(server.post("/score", {"text": "a", "choices": ["no"]}))
    while not server.engine.requests:
        await asyncio.sleep(0)

    aborted = await server.post("/abort_request", {"abort_all": True})
    reply = await work

    assert aborted.json() == {"aborted": 1}
    assert reply.status_code == 499
    assert reply.json() == {"error": {"message": "aborted on request"}}
    assert server.manager.in_flight == 0


@served()
async def test_a_score_finishes_while_the_server_drains(server: Server) -> None:
    server.engine.hold.clear()
    work = asyncio.ensure_future(score(server, text="a", choices=["no", "yes"]))
    while not server.engine.requests:
        await asyncio.sleep(0)
    draining = asyncio.ensure_future(server.manager.drain(60.0))
    await asyncio.sleep(0)
    server.engine.hold.set()

    assert len((await work)["choices"]) == 2
    assert await draining == 0
