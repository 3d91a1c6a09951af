"""What the model reads of a program, and the log-probabilities of what it would write next."""

from collections.abc import Iterator
from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.lang.backend import Backend
from runtime.lang.endpoint import Endpoint
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import assistant, gen, select, system, user, user_begin
from tests.testing.server_process import ServerProcess

TOP = 3


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> ServerProcess:
    """The default model."""
    return default_server


@pytest.fixture(params=["endpoint", "openai"])
def backend(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Backend]:
    """Both ways over HTTP."""
    if request.param == "endpoint":
        with Endpoint(server.url) as endpoint:
            yield endpoint
    else:
        with OpenAI(server.model(), base_url=f"{server.url}/v1") as openai:
            yield openai


def test_no_tokens_with_log_probabilities_are_those_of_the_next_token(backend: Backend) -> None:
    @function
    def score(s: State, tokens: int) -> None:
        s += "12 + 30 ="
        s += gen("x", max_tokens=tokens, return_logprob=True, top_logprobs_num=TOP)

    none, one = (score.run(tokens, backend=backend, temperature=0) for tokens in (0, 1))

    def likely(state: State) -> object:
        meta = state.get_meta_info("x")
        tops = meta.get("output_top_logprobs") or meta["logprobs"]["top_logprobs"]
        return len(tops), len(tops[0])

    assert (none["x"], none.text()) == ("", "12 + 30 =")
    assert one["x"]
    assert likely(none) == likely(one) == (1, TOP)


def seen(state: State, name: str) -> str:
    """Return the prompt of a generation as the model has read it."""
    return "".join(row[2] for row in state.get_meta_info(name)["input_token_logprobs"])


def test_a_chat_is_scored_and_text_outside_of_turns_is_read_as_it_stands(
    server: ServerProcess,
) -> None:
    @function
    def talk(s: State) -> None:
        s += system("Be brief.") + "A" + user("hi") + "B" + assistant("Yes") + gen("whole")
        s += "C" + gen("after") + select("which", ["x", "y"])
        s += user_begin() + "So" + gen("inside")

    reading: dict[str, Any] = {"logprob_start_len": 0, "return_text_in_logprobs": True}
    with Endpoint(server.url) as endpoint:
        state = talk.run(
            backend=endpoint, max_new_tokens=0, return_logprob=True, temperature=0, **reading
        )

    begin, end = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    whole = f"{begin}Be brief.A<｜User｜>hiB<｜Assistant｜></think>Yes{end}"
    assert seen(state, "whole") == whole
    assert seen(state, "after") == whole + "C"
    assert seen(state, "inside") == f"{whole}C{state['which']}<｜User｜>So"


@pytest.mark.parametrize(
    "given", [{"regex": "[a-z]{8,12}"}, {"temperature": 3}, {"temperature": 2, "ignore_eos": True}]
)
def test_a_chat_continues_at_the_exact_last_token_of_each_answer(
    server: ServerProcess, given: dict[str, Any]
) -> None:
    @function
    def talk(s: State) -> None:
        s += system("Be brief.") + user("hi") + assistant(gen("a", max_tokens=30, **given))
        s += user("more") + assistant("So " + gen("b", max_tokens=30, **given) + ".")
        s += user("again") + assistant(gen("c", max_tokens=2))

    with Endpoint(server.url) as endpoint:
        endpoint.flush_cache()
        state = talk.run(backend=endpoint)
        first, second, third = (state.get_meta_info(name) for name in "abc")
        # The last token was sampled, never fed.
        for past, next_ in ((first, second), (second, third)):
            assert next_["cached_tokens"] >= past["prompt_tokens"] + past["completion_tokens"] - 1
    with OpenAI(server.model(), base_url=f"{server.url}/v1") as openai:
        assert talk.run(backend=openai).messages()[1]["content"] == "hi"


def test_a_grammar_that_cannot_be_held_to_is_refused_by_name(server: ServerProcess) -> None:
    @function
    def number(s: State) -> None:
        s += "One and one is " + gen("sum", max_tokens=4, regex=r"(a|b)\1")

    with Endpoint(server.url) as endpoint:
        state = number.stream(backend=endpoint)
        with pytest.raises(BadRequest, match=r'^gen\("sum"\): .*[Bb]ackreference'):
            _ = state["sum"]


SORT = "Please sort the mails of the shop into weather, market or music, and say why. " * 3
REST = " A bird sang in the tree, and it went on for some more words." * 12


@pytest.mark.parametrize("kind", ["plain", "chat", "select"])
def test_the_second_run_hits_what_precedes_the_arguments(server: ServerProcess, kind: str) -> None:
    @function
    def ask(s: State, question: str) -> None:
        if kind == "plain":
            s += SORT + question + REST + gen("x", max_tokens=2)
        else:
            answer = gen("x", max_tokens=2) if kind == "chat" else select("x", ["a", "b c"])
            s += user(SORT + question + REST) + assistant(answer)

    counted = server.post("/tokenize", {"prompt": SORT, "add_special_tokens": False}).json()[
        "count"
    ]
    with Endpoint(server.url) as endpoint:
        endpoint.flush_cache()
        first, second = (
            ask.run(q, backend=endpoint, temperature=0).get_meta_info("x")["cached_tokens"]
            for q in ("Two bears met.", "One fox ran.")
        )

    assert first == 0
    # The last blank merges with the word behind it.
    assert second >= counted - 1
