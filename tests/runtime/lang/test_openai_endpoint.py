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


VARIABLES = {
    "OPENAI_BASE_URL": "http://env:1/v1/",
    "OPENAI_API_KEY": "env-key",
    "OPENAI_ORG_ID": "env-org",
    "OPENAI_PROJECT_ID": "env-project",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets some of the variables, given by their ends, and no others."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def set_some(ends: str) -> None:
        for name, value in VARIABLES.items():
            if name.removeprefix("OPENAI_") in ends.split():
                monkeypatch.setenv(name, value)

    return set_some


def sent_by(**arguments: Any) -> httpx.Request:
    """Return the request of a model that is made with these arguments."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=chat_reply("hello"))

    model = OpenAI("m", transport=httpx.MockTransport(handler), **arguments)
    LOOP.submit(model.generate(CHAT, Sampling(max_tokens=3))).result(WAIT_S)
    return seen[0]


DEFAULT = "https://api.openai.com"
OTHER = "http://other:2/v1"


@pytest.mark.parametrize(
    ("ends", "arguments", "server", "key"),
    [
        ("", {}, DEFAULT, None),
        ("API_KEY", {}, DEFAULT, "env-key"),
        ("BASE_URL", {}, "http://env:1", None),
        ("BASE_URL API_KEY", {}, "http://env:1", "env-key"),
        ("BASE_URL API_KEY", {"api_key": "mine"}, "http://env:1", "mine"),
        ("BASE_URL API_KEY", {"base_url": OTHER}, "http://other:2", None),
        ("BASE_URL API_KEY", {"base_url": OTHER, "api_key": "mine"}, "http://other:2", "mine"),
        (
            "BASE_URL API_KEY",
            {"base_url": "http://env:1/v1"},
            "http://env:1",
            "env-key",
        ),
        ("API_KEY", {"base_url": OTHER}, "http://other:2", None),
        ("API_KEY", {"base_url": DEFAULT + "/v1/"}, DEFAULT, "env-key"),
        ("API_KEY", {"api_key": ""}, DEFAULT, "env-key"),
    ],
)
def test_an_argument_comes_before_the_environment_and_that_before_the_default(
    environment: Callable[[str], None],
    ends: str,
    arguments: dict[str, Any],
    server: str,
    key: str | None,
) -> None:
    environment(ends)

    request = sent_by(**arguments)

    assert str(request.url) == server + "/v1/chat/completions"
    assert request.headers.get("authorization") == (None if key is None else f"Bearer {key}")
    body = json.loads(request.content)
    limits = [body.get("max_completion_tokens"), body.get("max_tokens")]
    assert limits == ([3, None] if server == DEFAULT else [None, 3])


def test_organization_and_project_go_where_the_key_does(
    environment: Callable[[str], None],
) -> None:
    environment("API_KEY ORG_ID PROJECT_ID")
    for arguments, expected in (
        ({}, ("env-org", "env-project")),
        ({"organization": "mine"}, ("mine", "env-project")),
        ({"base_url": OTHER}, (None, None)),
        ({"base_url": OTHER, "project": "mine"}, (None, "mine")),
    ):
        headers = sent_by(**arguments).headers
        assert (headers.get("openai-organization"), headers.get("openai-project")) == expected


def test_a_variable_that_is_wrong_is_named_where_it_is_used(
    environment: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment("")
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:30000")
    with pytest.raises(ValueError, match="OPENAI_BASE_URL must be http"):
        OpenAI("m")
    with pytest.raises(ValueError, match="base_url must be http"):
        OpenAI("m", base_url="server")
    assert sent_by(base_url=OTHER).url.host == "other"
    monkeypatch.setenv("OPENAI_BASE_URL", " ")
    assert sent_by().url.host == "api.openai.com"


@pytest.mark.parametrize("reply", [{}, {"choices": None}, [], "text"])
def test_a_reply_without_choices_fails(reply: Any) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=reply)

    model = OpenAI("m", base_url=OTHER, transport=httpx.MockTransport(handler))
    with pytest.raises(RequestFailed, match="the reply has no choices"):
        LOOP.submit(model.generate(CHAT, Sampling())).result(WAIT_S)


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
        model.aflush_cache(),
    ):
        with pytest.raises(BadRequest, match="OpenAI's API"):
            LOOP.submit(work).result(WAIT_S)


def test_a_prefix_is_not_computed_at_the_users_expense() -> None:
    recorded = Recorded({"id": "m"})

    LOOP.submit(recorded.backend.cache_prefix(PLAIN)).result(WAIT_S)
    assert recorded.sent == []
    assert recorded.model.get_server_info() == {"id": "m"}
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
