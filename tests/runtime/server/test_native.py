"""Tests of runtime.server.native: shapes and streams of `/generate`."""

import asyncio
import itertools
from typing import Any

import pytest

from runtime.messages import Logprobs, TokenLogprobs
from runtime.server.native import SLICE_ROWS, Shown
from runtime.server.runs import Answer
from tests.runtime.server.engine import EOS, Server, served, text_ids

GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 3}


@served()
async def test_one_prompt_gives_one_answer(server: Server) -> None:
    reply = (await server.post("/generate", {"text": "hi", "rid": "mine"})).json()

    meta = reply["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert reply == {
        "text": "hello",
        "output_ids": [*text_ids("hello"), EOS],
        "meta_info": {
            "id": "mine",
            "finish_reason": {"type": "stop", "matched": EOS},
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "cached_tokens": 3,
            "weight_version": "default",
        },
    }


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("reply", ['"\\" \n\t\x00\x7f </a>', "é世界🙂\u2028", "", "no more"])
@served()
async def test_the_events_of_a_stream_say_what_was_said_so_far(
    server: Server, reply: str, step: int
) -> None:
    server.engine.reply, server.engine.step = reply, step

    *events, done = await server.events("/generate", {"text": ["a", "b"]})

    assert done == "[DONE]"
    whole = (await server.post("/generate", {"text": "a"})).json()
    for index in (0, 1):
        own = [event for event in events if event["index"] == index]
        assert own[-1]["text"] == whole["text"] == reply
        assert own[-1]["output_ids"] == whole["output_ids"]
        for before, after in itertools.pairwise(own):
            assert after["text"].startswith(before["text"])
            assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
            assert len(after["output_ids"]) == after["meta_info"]["completion_tokens"]


@served()
async def test_put_and_token_ids_work_too(server: Server) -> None:
    body = {"input_ids": text_ids("hi"), "sampling_params": GREEDY}

    reply = (await server.client.put("/generate", json=body)).json()

    assert reply["text"] == "hel"
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


@served()
async def test_a_batch_gives_a_list_in_its_order(server: Server) -> None:
    params = [{"max_new_tokens": k} for k in (1, 2, 3)]

    replies = (
        await server.post("/generate", {"text": ["a", "b", "c"], "sampling_params": params})
    ).json()

    assert [reply["text"] for reply in replies] == ["h", "he", "hel"]
    assert len({reply["meta_info"]["id"] for reply in replies}) == 3


@served()
async def test_a_batch_of_one_and_several_choices_are_lists(server: Server) -> None:
    one = await server.post("/generate", {"input_ids": [[1]], "sampling_params": GREEDY})
    choices = await server.post("/generate", {"text": "a", "sampling_params": {"n": 3}})
    both = await server.post("/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}})

    assert [len(reply.json()) for reply in (one, choices, both)] == [1, 3, 4]


@served()
async def test_no_new_tokens_is_a_request_of_its_own(server: Server) -> None:
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 0}}

    reply = (await server.post("/generate", body)).json()

    assert (reply["text"], reply["output_ids"]) == ("", [])
    assert reply["meta_info"]["prompt_tokens"] == 2


@served()
async def test_a_stream_is_cumulative_and_ends_with_done(server: Server) -> None:
    *chunks, done = await server.events("/generate", {"text": "hi"})

    texts = [chunk["text"] for chunk in chunks]
    assert texts[-1] == "hello"
    assert len(texts) > 1
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert chunks[-1]["output_ids"] == [*text_ids("hello"), EOS]
    reasons = [chunk["meta_info"]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] == {"type": "stop", "matched": EOS}
    assert len({chunk["meta_info"]["id"] for chunk in chunks}) == 1
    assert done == "[DONE]"


@served()
async def test_a_streamed_batch_says_whose_chunk_it_is(server: Server) -> None:
    body = {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 3}}

    *chunks, _ = await server.events("/generate", body)

    last = {chunk["index"]: chunk["text"] for chunk in chunks}
    assert last == {0: "hel", 1: "hel", 2: "hel", 3: "hel"}


@pytest.mark.parametrize("stream", [False, True])
@served()
async def test_log_probabilities_have_their_layout(server: Server, stream: bool) -> None:
    body = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5],
        "return_text_in_logprobs": True,
    }

    if stream:
        meta = (await server.events("/generate", body))[-2]["meta_info"]
    else:
        meta = (await server.post("/generate", body)).json()["meta_info"]

    h, i, e = text_ids("hie")
    assert meta["input_token_logprobs"] == [[None, h, "h"], [-1.5, i, "i"]]
    assert meta["output_token_logprobs"] == [[-0.5, h, "h"], [-0.5, e, "e"]]
    assert meta["input_top_logprobs"] == [None, [[-1.5, i, "i"], [-9999.0, 65, "b"]]]
    assert meta["output_top_logprobs"][0] == [[-0.5, h, "h"], [-9999.0, 65, "b"]]
    assert meta["input_token_ids_logprobs"] == [None, [[-2.5, 5, "&"]]]
    assert meta["output_token_ids_logprobs"] == [[[-1.5, 5, "&"]], [[-1.5, 5, "&"]]]


def test_many_log_probabilities_are_rendered_in_turns() -> None:
    async def test() -> None:
        answer, asked = Answer(), Logprobs(0, top=1)
        count = 5 * SLICE_ROWS // 2
        answer.logprobs.extend(TokenLogprobs([-0.5] * count, [7] * count, [[(-0.5, 7)]] * count))
        shown = Shown(answer, "a")

        working = asyncio.ensure_future(shown.catch_up(asked, None))
        await asyncio.sleep(0)
        first = len(shown.output.tokens)
        await working

        assert first == SLICE_ROWS // 2
        assert shown.output.tokens == [[-0.5, 7, None]] * count
        assert shown.output.top == [[[-0.5, 7, None]]] * count

    asyncio.run(test())


@served()
async def test_a_stream_whose_every_chunk_would_repeat_megabytes_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.server.native.MAX_STREAMED_PROMPT_LOGPROBS", 3)
    body = {"text": "hi", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}

    streamed = await server.post("/generate", {**body, "stream": True})
    whole = await server.post("/generate", body)
    later = await server.post("/generate", {**body, "stream": True, "logprob_start_len": 1})

    assert streamed.status_code == 400
    assert "would repeat 4 log-probabilities" in streamed.json()["error"]["message"]
    assert (whole.status_code, later.status_code) == (200, 200)


@served()
async def test_by_default_only_the_output_has_log_probabilities(server: Server) -> None:
    body = {"text": "hi", "sampling_params": GREEDY, "return_logprob": True}

    meta = (await server.post("/generate", body)).json()["meta_info"]

    assert meta["input_token_logprobs"] == []
    assert [row[2] for row in meta["output_token_logprobs"]] == [None] * 3
    assert "output_top_logprobs" not in meta


@served()
async def test_stop_strings_are_reported_and_cut_off(server: Server) -> None:
    body = {"text": "hi", "sampling_params": {"stop": ["lo", "zz"]}}

    reply = (await server.post("/generate", body)).json()

    assert reply["text"] == "hel"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "lo"}


@served()
async def test_an_aborted_request_gives_what_there_is(server: Server) -> None:
    server.engine.hold.clear()
    body = {"text": "hi", "rid": "r1", "stream": True}
    waiting = asyncio.ensure_future(server.events("/generate", body))
    while not server.engine.requests:
        await asyncio.sleep(0)

    nobody = await server.post("/abort_request", {"rid": "r"})
    one = await server.post("/abort_request", {"rid": "r1"})
    *_, last, done = await waiting

    assert (nobody.json(), one.json()) == ({"aborted": 0}, {"aborted": 1})
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert done == "[DONE]"
    assert len(server.engine.aborted) == 1


@served()
async def test_a_rid_that_a_batch_and_a_single_request_have_means_both(server: Server) -> None:
    server.engine.hold.clear()
    bodies = [{"text": ["a", "b"], "rid": "r"}, {"text": "c", "rid": "r"}]
    waiting = [asyncio.ensure_future(server.post("/generate", body)) for body in bodies]
    while len(server.engine.requests) < 3:
        await asyncio.sleep(0)

    aborted = await server.post("/abort_request", {"rid": "r"})

    assert aborted.json() == {"aborted": 3}
    assert [(await reply).status_code for reply in waiting] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
@served()
async def test_the_rid_of_a_batch_means_all_of_it(server: Server, stream: bool) -> None:
    server.engine.hold.clear()
    body = {"text": ["a", "b", "c"], "rid": "r", "stream": stream}
    waiting = asyncio.ensure_future(server.post("/generate", body))
    while len(server.engine.requests) < 3:
        await asyncio.sleep(0)

    taken = await server.post("/generate", body)
    aborted = await server.post("/abort_request", {"rid": "r"})

    assert taken.status_code == 400
    assert aborted.json() == {"aborted": 3}
    assert (await waiting).status_code == 200
    server.engine.hold.set()
    assert (await server.post("/generate", body)).status_code == 200
