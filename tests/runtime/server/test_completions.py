"""Tests of runtime.server.completions: shapes and streams of `/v1/completions`."""

import threading
from typing import Any

import pytest

from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.server.engine import (
    ASSISTANT,
    CONTEXT_TOKENS,
    EOS,
    USER,
    Server,
    served,
    text_ids,
    tokenised,
)

PATH = "/v1/completions"


@served()
async def test_one_prompt_gives_one_choice(server: Server) -> None:
    reply = (await server.post(PATH, {"model": "tiny", "prompt": "hi you"})).json()

    assert reply.pop("id").startswith("cmpl-")
    assert reply.pop("created") > 0
    assert reply == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "hello",
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": EOS,
            }
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 6,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 3},
            "prompt_cache_hit_tokens": 3,
            "prompt_cache_miss_tokens": 3,
        },
    }


@pytest.mark.parametrize(
    ("prompt", "choices"), [("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1], [2, 3]], 2)]
)
@served()
async def test_every_form_of_prompt_is_taken(server: Server, prompt: Any, choices: int) -> None:
    reply = (await server.post(PATH, {"prompt": prompt, "n": 2, "max_tokens": 2})).json()

    assert [choice["index"] for choice in reply["choices"]] == list(range(2 * choices))
    assert {choice["text"] for choice in reply["choices"]} == {"he"}
    prompt_tokens = {"a": 1}.get(str(prompt), 2 if prompt in (["a", "b"], [1, 2]) else 3)
    assert reply["usage"]["prompt_tokens"] == prompt_tokens
    assert reply["usage"]["completion_tokens"] == 4 * choices


@served()
async def test_sixteen_tokens_are_the_default(server: Server) -> None:
    server.engine.reply = "x" * 40

    reply = (await server.post(PATH, {"prompt": "hi"})).json()

    assert reply["choices"][0]["text"] == "x" * 16
    assert reply["choices"][0]["finish_reason"] == "length"


@served()
async def test_more_tokens_than_the_context_has_are_refused(server: Server) -> None:
    fits = await server.post(PATH, {"prompt": "hi", "max_tokens": CONTEXT_TOKENS - 2})
    exceeds = await server.post(PATH, {"prompt": "hi", "max_tokens": CONTEXT_TOKENS - 1})

    assert fits.status_code == 200
    assert exceeds.status_code == 400
    assert exceeds.json()["error"]["code"] == "context_length_exceeded"


@served()
async def test_a_refusal_says_which_field_and_what_was_asked(server: Server) -> None:
    refused = [
        await server.post(PATH, {"prompt": [[65], [300]]}),
        await server.post(PATH, {"prompt": "hi", "logprobs": 21}),
    ]

    errors = [reply.json()["error"] for reply in refused]
    assert [error["param"] for error in errors] == ["prompt", "logprobs"]
    assert errors[1]["message"] == "logprobs must be between 0 and 20, got 21"


@served()
async def test_echo_puts_the_prompt_first_with_its_log_probabilities(server: Server) -> None:
    body = {"prompt": "hé", "echo": True, "logprobs": 1, "max_tokens": 2}

    for prompt in ("hé", text_ids("hé")):
        choice = (await server.post(PATH, {**body, "prompt": prompt})).json()["choices"][0]

        assert choice["text"] == "héhe"
        told = choice["logprobs"]
        assert told["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "h", "e"]
        assert told["token_logprobs"] == [None, -1.5, -1.5, -0.5, -0.5]
        assert told["text_offset"] == [0, 1, 2, 2, 3]
        assert told["top_logprobs"][0] is None
        assert told["top_logprobs"][3] == {"h": -0.5}


@pytest.mark.parametrize("prompt", [[300] * 401, [[65], [300] * 401]])
@served()
async def test_a_list_that_no_context_holds_is_refused_unseen(server: Server, prompt: Any) -> None:
    error = (await server.post(PATH, {"prompt": prompt, "echo": True})).json()["error"]

    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "the prompt has 401 tokens" in error["message"]


@pytest.mark.parametrize("item", ["x", [300] * 401])
@served()
async def test_too_many_prompts_are_refused_unseen(server: Server, item: Any) -> None:
    error = (await server.post(PATH, {"prompt": [item] * 257 + [1]})).json()["error"]

    assert error["message"] == "a request has at most 256 prompts, got 258"


@served()
async def test_a_long_echo_is_decoded_in_a_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    decode = TextTokenizer.decode

    def noted(tokenizer: TextTokenizer, ids: list[int], **how: bool) -> str:
        threads.append(threading.current_thread().name)
        return decode(tokenizer, ids, **how)

    monkeypatch.setattr(TextTokenizer, "decode", noted)
    body = {"prompt": [text_ids("a"), text_ids("b")], "echo": True}

    reply = (await server.post(PATH, body)).json()

    assert [choice["text"] for choice in reply["choices"]] == ["ahello", "bhello"]
    assert len(threads) == 2
    assert all(name.startswith("tokenise") for name in threads)


@pytest.mark.parametrize("stream", [False, True])
@served()
async def test_what_is_long_is_the_same_from_a_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    prompts = [text_ids("hé"), text_ids("a")]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "stream": stream}

    async def choices() -> list[Any]:
        if not stream:
            return (await server.post(PATH, body)).json()["choices"]
        *chunks, _ = await server.events(PATH, body)
        told = [chunk["choices"][0] for chunk in chunks]
        return [
            (one["index"], offset, token)
            for one in sorted(told, key=lambda one: one["index"])
            for offset, token in zip(
                *map(one["logprobs"].get, ("text_offset", "tokens")), strict=False
            )
        ]

    at_once = await choices()
    monkeypatch.setattr("runtime.server.openai._RENDERED_AT_ONCE", 0)
    monkeypatch.setattr("runtime.server.native_plan.IDS_AT_ONCE", 0)
    in_threads = tokenised(server, monkeypatch)

    assert await choices() == at_once
    # The plan, two echoes, and the log-probabilities of each choice.
    assert len(in_threads) >= 5


@served()
async def test_scoring_needs_no_new_token(server: Server) -> None:
    body = {"prompt": "hi", "echo": True, "logprobs": 0, "max_tokens": 0}

    choice = (await server.post(PATH, body)).json()["choices"][0]

    assert choice["text"] == "hi"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5]
    assert choice["logprobs"]["top_logprobs"] is None


@served()
async def test_hidden_tokens_take_no_room_in_the_offsets(server: Server) -> None:
    body = {"prompt": "hi", "logprobs": 0, "max_tokens": 20}
    server.engine.reply = "a<|User|>b"

    choice = (await server.post(PATH, body)).json()["choices"][0]

    assert choice["text"] == "ab"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]


@served()
async def test_a_control_token_that_the_prompt_spells_takes_its_room_in_the_echo(
    server: Server,
) -> None:
    body = {"prompt": "<|User|>hi<|Assistant|>", "echo": True, "logprobs": 0, "max_tokens": 20}
    server.engine.reply = "a<|User|>b"

    choice = (await server.post(PATH, body)).json()["choices"][0]
    ids = [USER, *text_ids("hi"), ASSISTANT]
    by_ids = (await server.post(PATH, {**body, "prompt": ids})).json()["choices"][0]

    assert choice["text"] == "<|User|>hi<|Assistant|>ab"
    assert choice["logprobs"]["text_offset"] == [0, 8, 9, 10, 23, 24, 24, 25]
    assert by_ids["text"] == "hiab"
    assert by_ids["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 3, 3, 4]


@served()
async def test_a_stream_gives_increments_and_usage_last(server: Server) -> None:
    body = {"prompt": "hi", "echo": True, "logprobs": 0, "stream_options": {"include_usage": True}}

    *chunks, usage, done = await server.events(PATH, body)

    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "hihello"
    offsets = [at for choice in choices for at in choice["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["usage"]["prompt_cache_hit_tokens"] == 3
    assert done == "[DONE]"


@served()
async def test_without_the_option_no_chunk_has_usage(server: Server) -> None:
    *chunks, _ = await server.events(PATH, {"prompt": "hi"})

    assert all("usage" not in chunk for chunk in chunks)


@served()
async def test_usage_can_come_with_every_chunk(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    *chunks, _ = await server.events(PATH, {"prompt": "hi", "stream_options": options})

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6


@served()
async def test_a_streamed_batch_keeps_its_indices_apart(server: Server) -> None:
    *chunks, _ = await server.events(PATH, {"prompt": ["a", "b"], "n": 2, "echo": True})

    texts = dict.fromkeys(range(4), "")
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "ahello", 1: "ahello", 2: "bhello", 3: "bhello"}


@served()
async def test_token_ids_are_told_when_asked(server: Server) -> None:
    body = {"prompt": "hi", "max_tokens": 3, "return_token_ids": True}

    whole = (await server.post(PATH, body)).json()["choices"][0]
    *chunks, _ = await server.events(PATH, body)
    plain = (await server.post(PATH, {"prompt": "hi"})).json()["choices"][0]

    ids = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    assert whole["token_ids"] == ids == text_ids("hel")
    assert "token_ids" not in plain
