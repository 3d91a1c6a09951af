"""Bad input is answered 400 with a message, and harms nobody: the next request works.

One table for /generate and one for the OpenAI routes; every case is followed by the same good
request, whose tokens must not change.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.pools import assert_all_free
from tests.testing.server_process import Json, ServerProcess, generate_body, running_server

CONTEXT = 600
PROMPT = [0, *range(10, 40)]


@pytest.fixture(scope="module")
def server(narrow_stand_in: Path) -> Iterator[ServerProcess]:
    """One server for all cases, ended as from a terminal."""
    flags = ("--context-length", str(CONTEXT), "--full-pages", "16", "--random-seed", "0")
    with running_server("--model-path", str(narrow_stand_in), *flags, stop=signal.SIGINT) as server:
        yield server


@pytest.fixture(scope="module")
def good(server: ServerProcess) -> list[int]:
    """The tokens a good request gets."""
    return _good(server)


def _good(server: ServerProcess) -> list[int]:
    return server.generate(PROMPT, max_new_tokens=4, ignore_eos=True)["output_ids"]


def _sampling(**fields: Any) -> Json:
    return generate_body(PROMPT, None, **{"max_new_tokens": 2, **fields})


BAD_GENERATE: dict[str, Json] = {
    "no prompt": {"sampling_params": {}},
    "two prompts": {"text": "a", "input_ids": [1], "sampling_params": {}},
    "empty ids": {"input_ids": []},
    "empty text": {"text": ""},
    "empty batch": {"input_ids": [[]]},
    "negative id": {"input_ids": [5, -1]},
    "id past the vocabulary": {"input_ids": [5, 1 << 30]},
    "id past 32 bits": {"input_ids": [5, 1 << 40]},
    "fractional id": {"input_ids": [1.5]},
    "text of a wrong type": {"text": 7},
    "prompt beyond the context": {"input_ids": [7] * (CONTEXT + 1)},
    "prompt and tokens beyond it": _sampling(max_new_tokens=CONTEXT),
    "negative max_new_tokens": _sampling(max_new_tokens=-1),
    "temperature below 0": _sampling(temperature=-0.1),
    "temperature a string": _sampling(temperature="hot"),
    "top_p below 0": _sampling(top_p=-0.1),
    "top_p above 1": _sampling(top_p=1.1),
    "top_k -2": _sampling(top_k=-2),
    "min_p above 1": _sampling(min_p=2),
    "n 0": _sampling(n=0),
    "n huge": _sampling(n=1_000_000),
    "repetition_penalty 0": _sampling(repetition_penalty=0),
    "frequency_penalty huge": _sampling(frequency_penalty=1e9),
    "stop of a wrong type": _sampling(stop=[1]),
    "too many stops": _sampling(stop=["x"] * 1000),
    "bias of an unknown token": _sampling(logit_bias={"9999999": 1}),
    "bias not a number": _sampling(logit_bias={"x": 1}),
    "stop id past the vocabulary": _sampling(stop_token_ids=[1 << 31]),
    "logprob start negative": generate_body(
        PROMPT, {"return_logprob": True, "logprob_start_len": -5}
    ),
    "too many alternatives": generate_body(
        PROMPT, {"return_logprob": True, "top_logprobs_num": 100_000}
    ),
}

BAD_OPENAI: dict[str, tuple[str, Json]] = {
    "no messages": ("/v1/chat/completions", {"messages": []}),
    "messages missing": ("/v1/chat/completions", {}),
    "message without role": ("/v1/chat/completions", {"messages": [{"content": "x"}]}),
    "unknown role": ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}),
    "content a number": ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}),
    "too many top_logprobs": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 21},
    ),
    "max_tokens 0": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": -1},
    ),
    "prompt missing": ("/v1/completions", {}),
    "prompt of a wrong type": ("/v1/completions", {"prompt": {"a": 1}}),
    "prompt too long": ("/v1/completions", {"prompt": [7] * (CONTEXT + 1)}),
}


@pytest.mark.parametrize("name", BAD_GENERATE)
def test_generate_refuses_and_goes_on(server: ServerProcess, good: list[int], name: str) -> None:
    response = server.post("/generate", BAD_GENERATE[name])

    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]
    assert _good(server) == good


@pytest.mark.parametrize("name", BAD_OPENAI)
def test_the_openai_routes_refuse_in_their_own_shape(
    server: ServerProcess, good: list[int], name: str
) -> None:
    path, body = BAD_OPENAI[name]

    response = server.post(path, {"model": server.model(), **body})

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    assert _good(server) == good


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"input_ids": [NaN]}', b"[" * 100_000],
    ids=["empty", "cut off", "null", "list", "not utf-8", "NaN", "nested"],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_what_is_no_json_object_is_refused(
    server: ServerProcess, path: str, content: bytes
) -> None:
    headers = {"Content-Type": "application/json"}

    response = server.client.post(path, content=content, headers=headers)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_a_refused_stream_is_a_status_not_an_event(server: ServerProcess) -> None:
    body = {**BAD_GENERATE["prompt beyond the context"], "stream": True}

    response = server.post("/generate", body)

    assert response.status_code == 400, response.text


def test_unknown_paths_and_methods_are_answered_as_such(server: ServerProcess) -> None:
    assert server.client.get("/nothing").status_code == 404
    assert server.client.delete("/generate").status_code == 405
    assert json.loads(server.client.get("/v1/nothing").content)["error"]["type"]


def test_an_unknown_model_is_not_found(server: ServerProcess) -> None:
    body = {"model": "no-such-model", "prompt": "x"}

    response = server.post("/v1/completions", body)

    assert response.status_code == 404
    assert response.json()["error"]["message"]


def test_nothing_is_left_behind(server: ServerProcess, good: list[int]) -> None:
    assert _good(server) == good

    assert_all_free(server)
