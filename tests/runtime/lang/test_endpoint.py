"""Tests of runtime.lang.endpoint: what is sent, and how replies are read."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from runtime.errors import NotFound, RequestError, Unauthorized, Unavailable
from runtime.lang.backend import Backend, Generation
from runtime.lang.endpoint import Endpoint
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt, Turn, Written
from runtime.lang.sampling import Sampling

WAIT_S = 60.0


class Recorded:
    """An endpoint over replies that the test writes, and the bodies it sent."""

    def __init__(self, reply: Callable[[str, Any], Any]) -> None:
        self.sent: list[tuple[str, Any]] = []

        def handler(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content) if request.content else None
            self.sent.append((request.url.path, body))
            answer = reply(request.url.path, body)
            if isinstance(answer, httpx.Response):
                return answer
            return httpx.Response(200, json=answer)

        self.endpoint = Endpoint("http://server", transport=httpx.MockTransport(handler))
        self.backend: Backend = self.endpoint


def reply(text: str, ids: list[int], matched: object = None) -> dict[str, Any]:
    finish = {"type": "stop", "matched": matched} if matched else {"type": "length"}
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": finish}}


def generate(recorded: Recorded, prompt: Prompt, **sampling: Any) -> list[Generation]:
    work = recorded.endpoint.generate(prompt, Sampling.of(sampling))
    return LOOP.submit(work).result(WAIT_S)


def test_text_goes_as_text_and_sampling_under_its_native_names() -> None:
    recorded = Recorded(lambda path, body: reply("hi", [1, 2]))

    [written] = generate(
        recorded, Prompt(pieces=("a",)), max_tokens=3, regex="[0-9]", return_logprob=True
    )

    assert recorded.sent == [
        (
            "/generate",
            {
                "text": "a",
                "sampling_params": {"max_new_tokens": 3, "regex": "[0-9]"},
                "return_logprob": True,
            },
        )
    ]
    assert (written.text, written.token_ids) == ("hi", (1, 2))


def test_what_the_model_wrote_goes_back_as_ids() -> None:
    recorded = Recorded(lambda path, body: reply("", []))

    generate(recorded, Prompt(pieces=("a", Written("b", (7, 8)), "c")))

    assert recorded.sent[0][1]["prompt_parts"] == {"segments": ["a", [7, 8], "c"]}


def test_a_chat_goes_as_messages_and_an_answer_that_began_is_continued() -> None:
    recorded = Recorded(lambda path, body: reply("", []))
    user, begun = Turn("user", "hi"), Turn("assistant", "Well,")

    generate(recorded, Prompt(turns=(user,)))
    generate(recorded, Prompt(turns=(user, begun)))
    LOOP.submit(recorded.endpoint.cache_prefix(Prompt(turns=(user,), open=False))).result(WAIT_S)

    prompts = [body["prompt_parts"] for _, body in recorded.sent]
    assert [len(prompt["messages"]) for prompt in prompts] == [1, 2, 1]
    assert [prompt["continue_final_message"] for prompt in prompts] == [False, True, False]
    assert [prompt["add_generation_prompt"] for prompt in prompts] == [True, False, False]
    assert {prompt["chat_template_kwargs"]["thinking"] for prompt in prompts} == {False}
    assert recorded.sent[2][1]["sampling_params"] == {"max_new_tokens": 0}


def test_the_end_token_is_not_part_of_what_was_written() -> None:
    recorded = Recorded(lambda path, body: reply("hi", [1, 2, 9], matched=9))
    cut = Recorded(lambda path, body: reply("h", [1, 2, 3], matched="i"))

    assert generate(recorded, Prompt(pieces=("a",)))[0].token_ids == (1, 2)
    assert generate(cut, Prompt(pieces=("a",)))[0].token_ids == (1, 2, 3)
    assert generate(cut, Prompt(pieces=("a",)))[0].is_cut


def test_several_choices_come_in_one_reply() -> None:
    recorded = Recorded(lambda path, body: [reply("a", [1]), reply("b", [2])])

    assert [g.text for g in generate(recorded, Prompt(pieces=("x",)), n=2)] == ["a", "b"]


def test_a_stream_gives_what_is_new_and_at_last_the_whole() -> None:
    chunks = [reply("h", [1]), reply("h", [1]), reply("hi", [1, 2])]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    content = "".join([*lines, "data: [DONE]\n\n"])
    recorded = Recorded(lambda path, body: httpx.Response(200, text=content))

    async def read() -> list[Any]:
        stream = recorded.endpoint.stream(Prompt(pieces=("a",)), Sampling())
        return [piece async for piece in stream]

    pieces = LOOP.submit(read()).result(WAIT_S)

    assert [piece.text for piece in pieces] == ["h", "", "i", ""]
    assert pieces[-1].last.token_ids == (1, 2)
    assert recorded.sent[0][1]["stream"] is True


def test_choices_are_scored_by_one_request() -> None:
    row = {"token_ids": [1], "token_texts": ["y"], "logprobs": [-1.0]}
    more = {**row, "unconditional_logprobs": [None]}
    recorded = Recorded(lambda path, body: {"choices": [row, more], "meta_info": {"id": "x"}})

    work = recorded.endpoint.score(Prompt(pieces=("a",)), ("y", "n"), unconditional=True)
    scores, meta = LOOP.submit(work).result(WAIT_S)

    assert recorded.sent == [
        ("/score", {"text": "a", "choices": ["y", "n"], "unconditional": True})
    ]
    assert [score.text for score in scores] == ["y", "n"]
    assert (scores[0].unconditional, scores[1].unconditional) == (None, (None,))
    assert meta == {"id": "x"}


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (404, NotFound), (503, Unavailable)]
)
def test_who_may_not_flush_or_cannot_is_told(status: int, kind: type[RequestError]) -> None:
    body = {"error": {"message": "no luck"}}
    recorded = Recorded(lambda path, _: httpx.Response(status, json=body))

    with recorded.endpoint as endpoint, pytest.raises(kind, match="no luck"):
        endpoint.flush_cache()


@pytest.mark.parametrize(("status", "done"), [(200, True), (400, False)])
def test_the_cache_is_flushed_unless_it_is_busy(status: int, done: bool) -> None:
    recorded = Recorded(lambda path, body: httpx.Response(status))

    with recorded.endpoint as endpoint:
        assert endpoint.flush_cache() is done


def test_facts_are_what_the_server_says() -> None:
    recorded = Recorded(lambda path, body: {"version": "1"})

    assert recorded.endpoint.get_server_info() == {"version": "1"}


def test_facts_of_the_model_are_read_from_its_server() -> None:
    recorded = Recorded(lambda path, body: {"model_path": path})

    assert recorded.endpoint.model_info == {"model_path": "/model_info"}
