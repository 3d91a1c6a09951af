"""Tests of runtime.server.native_plan: values per prompt, refusals before anything runs."""

from typing import Any

import pytest

from tests.runtime.server.engine import Server, served

BAD: dict[str, dict[str, Any]] = {
    "neither text nor ids": {},
    "both text and ids": {"text": "x", "input_ids": [1]},
    "empty batch": {"text": []},
    "empty ids": {"input_ids": []},
    "empty list of ids": {"input_ids": [[1], []]},
    "mixed ids": {"input_ids": [1, [2]]},
    "lists of ids and an id": {"input_ids": [[1], 2]},
    "id beyond 64 bits": {"input_ids": [1 << 70]},
    "id out of range": {"input_ids": [300]},
    "negative id": {"input_ids": [-1]},
    "too many prompts": {"text": ["x"] * 257},
    "too many sequences": {"text": ["x"] * 17, "sampling_params": {"n": 64}},
    "params of another length": {"text": ["a", "b"], "sampling_params": [{}]},
    "list of params for one prompt": {"text": "a", "sampling_params": [{}, {}]},
    "different n": {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]},
    "rids of another length": {"text": ["a", "b"], "rid": ["x"]},
    "same rid twice": {"text": ["a", "b"], "rid": ["x", "x"]},
    "starts of another length": {
        "text": ["a", "b"], "return_logprob": True, "logprob_start_len": [1],
    },
    "start below -1": {"text": "a", "return_logprob": True, "logprob_start_len": -2},
    "too many alternatives": {"text": "a", "return_logprob": True, "top_logprobs_num": 129},
    "negative alternatives": {"text": "a", "return_logprob": True, "top_logprobs_num": -1},
    "picked id out of range": {"text": "a", "return_logprob": True, "token_ids_logprob": [300]},
    "too many picked ids": {"text": "a", "return_logprob": True, "token_ids_logprob": [1] * 1025},
    "salts of another length": {"text": ["a", "b"], "cache_salt": ["x"]},
    "salt of other characters": {"text": "a", "extra_key": "a b"},
    "priority beyond 16 bits": {"text": "a", "priority": 1 << 15},
    "sampling_params of a string": {"text": "a", "sampling_params": "x"},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@served()
async def test_a_bad_request_is_refused_before_anything_runs(server: Server, name: str) -> None:
    reply = await server.post("/generate", BAD[name])

    assert reply.status_code == 400, reply.text
    assert set(reply.json()["error"]) == {"message"}
    assert name == "same rid twice" or not server.engine.requests or "id" in name
    assert (await server.post("/generate", {"text": "x"})).status_code == 200


@pytest.mark.parametrize("ids", [[1 << 70] * 401, [[65], [1 << 70] * 401]])
@served()
async def test_a_list_that_no_context_holds_is_refused_unseen(server: Server, ids: Any) -> None:
    reply = await server.post("/generate", {"input_ids": ids})

    assert reply.status_code == 400
    assert "the prompt has 401 tokens" in reply.json()["error"]["message"]


def _told(tokens: int | None, top: int, **more: Any) -> dict[str, Any]:
    params = {} if tokens is None else {"max_new_tokens": tokens}
    asked = {"return_logprob": True, "top_logprobs_num": top, "sampling_params": params}
    return {"text": "a", **asked, **more}


@pytest.mark.parametrize(
    ("fits", "exceeds"),
    [
        (_told(99, 9), _told(100, 10)),
        (_told(None, 6), _told(None, 7)),
        (_told(99, 0, token_ids_logprob=[1] * 9), _told(99, 0, token_ids_logprob=[1] * 10)),
        (_told(49, 9, text=["a", "b"]), _told(51, 9, text=["a", "b"])),
        (_told(49, 9, stream=True), _told(51, 9, stream=True)),
        (_told(350, 0, text=["a"] * 9), _told(350, 2)),
    ],
)
@served()
async def test_what_is_told_of_the_output_is_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch, fits: Any, exceeds: Any
) -> None:
    monkeypatch.setattr("runtime.server.native_plan.MAX_OUTPUT_LOGPROBS", 1000)
    monkeypatch.setattr("runtime.server.native_plan.MAX_STREAMED_OUTPUT_LOGPROBS", 500)

    refused = await server.post("/generate", exceeds)

    assert refused.status_code == 400
    assert "a smaller max_new_tokens" in refused.json()["error"]["message"]
    assert not server.engine.requests
    assert (await server.post("/generate", fits)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_everyday_log_probabilities_are_told(server: Server, stream: bool) -> None:
    reply = await server.post("/generate", _told(7000, 20, stream=stream))

    assert reply.status_code == 200


@served()
async def test_each_prompt_gets_its_own_values(server: Server) -> None:
    body = {
        "text": ["a", "b", "c"],
        "sampling_params": [{"max_new_tokens": k} for k in (1, 2, 3)],
        "return_logprob": [True, True, False],
        "logprob_start_len": [0, -1, 0],
        "top_logprobs_num": [0, 2, 5],
        "token_ids_logprob": [[5, 6], [7], []],
        "rid": ["x", "y", "z"],
        "cache_salt": ["s1", "s2", "s1"],
        "priority": 4,
    }

    replies = (await server.post("/generate", body)).json()

    assert [reply["meta_info"]["id"] for reply in replies] == ["x", "y", "z"]
    a, b, c = sorted(server.engine.requests, key=lambda r: r.sampling.max_new_tokens)
    assert a.logprobs is not None
    assert b.logprobs is not None
    assert (a.logprobs.start, a.logprobs.top, a.logprobs.token_ids) == (0, 0, (5, 6))
    assert (b.logprobs.start > 10**9, b.logprobs.top, b.logprobs.token_ids) == (True, 2, (7,))
    assert c.logprobs is None
    assert a.namespace == c.namespace != b.namespace
    assert {r.priority for r in (a, b, c)} == {4}


@served()
async def test_one_list_of_picked_ids_is_meant_for_every_prompt(server: Server) -> None:
    body = {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [5, 6]}

    await server.post("/generate", body)

    picked = [r.logprobs.token_ids for r in server.engine.requests if r.logprobs]
    assert picked == [(5, 6), (5, 6)]
