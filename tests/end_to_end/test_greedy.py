"""A top_p of 0 is greedy, in every dialect, streamed and not."""

import json
from typing import Any

import pytest

from runtime.lang.endpoint import Endpoint
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import gen
from tests.testing.server_process import Json, ServerProcess

HI: list[Json] = [{"role": "user", "content": "Hello there"}]
GREEDY: Json = {"temperature": 0}
TOKENS = 6
BODIES: dict[str, Json] = {
    "/generate": {"text": "Hello there"},
    "/v1/completions": {"prompt": "Hello there", "max_tokens": TOKENS},
    "/v1/chat/completions": {"messages": HI, "max_tokens": TOKENS},
    "/v1/messages": {"model": "default", "messages": HI, "max_tokens": TOKENS},
}
_TEXTS = ("text", "content", "reasoning_content", "thinking")


def texts_of(value: Any) -> list[str]:
    """Return every text of an answer or of an event, however deep it stands."""
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in _TEXTS if isinstance(value.get(name), str)]
    return [*own, *(text for item in value.values() for text in texts_of(item))]


def answer(server: ServerProcess, path: str, sampling: Json, *, stream: bool = False) -> str:
    if path == "/generate":
        sampling = {"sampling_params": {**sampling, "max_new_tokens": TOKENS}}
    reply = server.post(path, {**BODIES[path], **sampling, "stream": stream})
    assert reply.status_code == 200, reply.text
    if not stream:
        return "".join(texts_of(reply.json()))
    lines = (line.removeprefix("data: ") for line in reply.text.split("\n") if line[:5] == "data:")
    told = ["".join(texts_of(json.loads(line))) for line in lines if line != "[DONE]"]
    return told[-1] if path == "/generate" else "".join(told)


@pytest.mark.parametrize("path", BODIES)
def test_a_top_p_of_0_takes_the_likeliest_tokens(stand_in_server: ServerProcess, path: str) -> None:
    best = answer(stand_in_server, path, GREEDY)

    assert best
    assert answer(stand_in_server, path, {"top_p": 0, "seed": 1}) == best
    hot = {"top_p": 0.0, "temperature": 1.5, "seed": 2}
    assert answer(stand_in_server, path, hot, stream=True) == best
    assert answer(stand_in_server, path, {**hot, "top_p": 1}) != best


def test_a_program_can_ask_for_it_too(stand_in_server: ServerProcess) -> None:
    @function
    def told(s: State) -> None:
        s += "Hello there" + gen("answer", max_tokens=TOKENS)

    ways: list[dict[str, Any]] = [GREEDY, {"top_p": 0.0, "temperature": 2.0}]
    with Endpoint(stand_in_server.url) as backend:
        best, got = [told.run(backend=backend, **sampling)["answer"] for sampling in ways]

    assert best
    assert got == best
