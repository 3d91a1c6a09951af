"""Tests of runtime.lang.openai_endpoint: what is sent to OpenAI's API, and what cannot be."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from runtime.errors import Aborted, BadRequest, RequestFailed
from runtime.lang.backend import Backend, Piece
from runtime.lang.choices import ChoiceScore
from runtime.lang.loop import LOOP
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.prompt import Prompt, Turn
from runtime.lang.sampling import Sampling

WAIT_S = 60.0
CHAT = Prompt(turns=(Turn("user", "hi"),))
PLAIN = Prompt(pieces=("Once ",))


class Recorded:
    """A model over replies that the test writes, and the bodies it was sent."""

    def __init__(self, reply: Any) -> None:
        self.sent: list[tuple[str, Any]] = []

        def handler(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content) if request.content else None
            self.sent.append((request.url.path, body))
            if isinstance(reply, str):
                return httpx.Response(200, text=reply)
            return httpx.Response(200, json=reply)

        transport = httpx.MockTransport(handler)
        self.model = OpenAI("m", base_url="http://server/v1", transport=transport)
        self.backend: Backend = self.model


def chat_reply(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}


def generate(recorded: Recorded, prompt: Prompt, **sampling: Any) -> list[str]:
    work = recorded.model.generate(prompt, Sampling.of(sampling))
    return [written.text for written in LOOP.submit(work).result(WAIT_S)]


def test_a_chat_goes_to_chat_completions() -> None:
    recorded = Recorded(chat_reply("hello"))

    texts = generate(recorded, CHAT, temperature=0, top_k=3, return_logprob=True)

    assert texts == ["hello"]
    assert recorded.sent == [
        (
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 128,
                "temperature": 0,
                "top_k": 3,
                "logprobs": True,
                "top_logprobs": 0,
            },
        )
    ]


def test_further_fields_are_sent_with_every_generation() -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json=chat_reply("hello"))

    transport = httpx.MockTransport(handler)
    extra = {"reasoning_effort": "none", "temperature": 1.0}
    model = OpenAI("m", base_url="http://server/v1", extra_body=extra, transport=transport)
    LOOP.submit(model.generate(CHAT, Sampling(temperature=0.0))).result(WAIT_S)

    assert (seen[0]["reasoning_effort"], seen[0]["temperature"]) == ("none", 0.0)


def test_an_answer_that_began_is_continued() -> None:
    recorded = Recorded(chat_reply(" hello"))

    generate(recorded, Prompt(turns=(*CHAT.turns, Turn("assistant", "Well,"))))

    body = recorded.sent[0][1]
    assert body["messages"][-1] == {"role": "assistant", "content": "Well,"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_plain_text_goes_to_completions() -> None:
    recorded = Recorded({"choices": [{"text": "a"}, {"text": "b"}]})

    assert generate(recorded, PLAIN, n=2, max_tokens=3, return_logprob=True) == ["a", "b"]
    assert recorded.sent[0] == (
        "/v1/completions",
        {"model": "m", "prompt": "Once ", "max_tokens": 3, "n": 2, "logprobs": 0},
    )


def test_a_key_of_the_environment_goes_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen: list[tuple[str | None, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers.get("authorization"), json.loads(request.content)))
        return httpx.Response(200, json=chat_reply("hello"))

    transport = httpx.MockTransport(handler)
    for model in (
        OpenAI("m", transport=transport),
        OpenAI("m", base_url="http://server/v1", transport=transport),
    ):
        LOOP.submit(model.generate(CHAT, Sampling(max_tokens=3))).result(WAIT_S)

    assert [key for key, _ in seen] == ["Bearer secret", None]
    assert [body.get("max_completion_tokens") for _, body in seen] == [3, None]
    assert [body.get("max_tokens") for _, body in seen] == [None, 3]


def test_a_schema_is_sent_as_openai_names_it() -> None:
    recorded = Recorded(chat_reply("{}"))

    generate(recorded, CHAT, json_schema='{"type": "object"}')

    assert recorded.sent[0][1]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }


def stream(reply: str, prompt: Prompt) -> list[Piece]:
    model = Recorded(reply).model

    async def read() -> list[Piece]:
        return [piece async for piece in model.stream(prompt, Sampling())]

    return LOOP.submit(read()).result(WAIT_S)


@pytest.mark.parametrize(
    ("prompt", "make"),
    [(CHAT, lambda t: {"delta": {"content": t}}), (PLAIN, lambda t: {"text": t})],
)
def test_a_stream_gives_pieces_and_at_last_the_whole(
    prompt: Prompt, make: Callable[[str], dict[str, Any]]
) -> None:
    chunks = [
        {"choices": [{"index": 0, **make("he")}]},
        {"choices": [{"index": 0, **make("llo"), "finish_reason": "stop"}]},
        {"choices": [], "usage": {"total_tokens": 3}},
    ]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    pieces = stream(text, prompt)

    assert [piece.text for piece in pieces] == ["he", "llo", ""]
    assert pieces[-1].last is not None
    assert pieces[-1].last.text == "hello"
    assert pieces[-1].last.meta_info == {
        "finish_reason": "stop",
        "usage": {"total_tokens": 3},
        "logprobs": None,
    }


@pytest.mark.parametrize(
    ("prompt", "told", "whole"),
    [
        (
            CHAT,
            [{"content": [{"token": "a"}], "refusal": None}, None, {"content": [{"token": "b"}]}],
            {"content": [{"token": "a"}, {"token": "b"}], "refusal": None},
        ),
        (
            PLAIN,
            [
                {
                    "tokens": ["a"],
                    "token_logprobs": [-1.0],
                    "top_logprobs": [{}],
                    "text_offset": [0],
                },
                {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
                {
                    "tokens": ["b"],
                    "token_logprobs": [-2.0],
                    "top_logprobs": [{}],
                    "text_offset": [1],
                },
            ],
            {
                "tokens": ["a", "b"],
                "token_logprobs": [-1.0, -2.0],
                "top_logprobs": [{}, {}],
                "text_offset": [0, 1],
            },
        ),
    ],
)
def test_a_stream_tells_log_probabilities_at_last_as_a_reply_does(
    prompt: Prompt, told: list[dict[str, Any]], whole: dict[str, Any]
) -> None:
    chunks = [{"choices": [{"index": 0, "text": "x", "logprobs": part}]} for part in told]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    [*_, last] = stream(text, prompt)

    assert last.last is not None
    assert last.last.meta_info["logprobs"] == whole


def echoed(index: int, *tokens: str) -> dict[str, Any]:
    offsets = [sum(map(len, tokens[:k])) for k in range(len(tokens))]
    values = [None, *[-float(k) for k in range(1, len(tokens))]]
    logprobs = {"tokens": tokens, "text_offset": offsets, "token_logprobs": values}
    return {"index": index, "text": "".join(tokens), "logprobs": logprobs}


def score(recorded: Recorded, prompt: Prompt, **options: Any) -> list[ChoiceScore]:
    work = recorded.model.score(prompt, ("one", "two more"), unconditional=False, **options)
    return LOOP.submit(work).result(WAIT_S)[0]


def test_choices_are_scored_by_one_echo_from_a_common_boundary() -> None:
    """The first choice takes the blank before it along, so the second is scored with it, too."""
    choices = [echoed(1, "Once", " ", "two", " more"), echoed(0, "Once", " one")]
    recorded = Recorded({"choices": choices})

    one, two = score(recorded, PLAIN)

    assert (one.token_texts, one.logprobs) == ((" one",), (-1.0,))
    assert (two.token_texts, two.logprobs) == ((" ", "two", " more"), (-1.0, -2.0, -3.0))
    assert len(recorded.sent) == 1
    assert recorded.sent[0][1]["prompt"] == ["Once one", "Once two more"]
    assert recorded.sent[0][1]["echo"] is True


def test_a_server_without_echo_is_found_out() -> None:
    empty = {"tokens": [], "text_offset": [], "token_logprobs": []}
    recorded = Recorded({"choices": [{"index": k, "logprobs": empty} for k in range(2)]})

    with pytest.raises(RequestFailed, match="echo"):
        score(recorded, PLAIN)


def test_what_the_api_cannot_do_is_refused_with_a_reason() -> None:
    model = Recorded({}).model
    for work in (
        model.score(CHAT, ("a",), unconditional=False),
        model.score(PLAIN, ("a",), unconditional=True),
        model.flush_cache(),
    ):
        with pytest.raises(BadRequest, match="OpenAI's API"):
            LOOP.submit(work).result(WAIT_S)


def test_a_prefix_is_not_computed_at_the_users_expense() -> None:
    recorded = Recorded({"id": "m"})

    LOOP.submit(recorded.backend.cache_prefix(PLAIN)).result(WAIT_S)
    assert recorded.sent == []
    assert LOOP.submit(recorded.backend.server_info()).result(WAIT_S) == {"id": "m"}
    assert recorded.sent == [("/v1/models/m", None)]


@pytest.mark.parametrize("streams", [False, True])
def test_a_generation_that_was_aborted_is_none(streams: bool) -> None:
    choice = {"index": 0, "text": "Once", "finish_reason": "abort"}
    event = "data: " + json.dumps({"choices": [choice]}) + "\n\ndata: [DONE]\n\n"
    recorded = Recorded(event if streams else {"choices": [choice]})

    async def read() -> list[Piece]:
        return [piece async for piece in recorded.model.stream(PLAIN, Sampling())]

    with pytest.raises(Aborted):
        LOOP.submit(read()).result(WAIT_S) if streams else generate(recorded, PLAIN)
