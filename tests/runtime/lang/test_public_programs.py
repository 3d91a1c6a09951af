"""The shapes of public programs of SGLang's language, on all three backends."""

import asyncio
from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.lang.backend import Backend, set_default_backend
from runtime.lang.program import function
from runtime.lang.state import AsyncState, State
from runtime.lang.words import assistant, gen, select, system, user
from tests.runtime.lang.three_backends import NAMES, Model, make_backend


@pytest.fixture
def model() -> Model:
    """What answers each prompt with its length."""
    return Model()


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, model: Model) -> Backend:
    """Each of the three."""
    return make_backend(request.param, model)


def test_forks_are_told_different_things_by_number(backend: Backend) -> None:
    """Parallel decoding: a list of tips, each of which a fork works out."""

    @function
    def tips(s: State, count: int) -> list[str]:
        s += "Tips:"
        for k in range(count):
            s += f" {k}." + gen(max_tokens=4)
        forks = s.fork(count)
        for k in range(count):
            forks[k] += f"\nTip {k}:"
            forks[k] += gen("detail", max_tokens=8)
        forks.join()
        for k in range(count):
            s += f"\nTip {k}:" + forks[k]["detail"]
        s += "\nIn summary," + gen("summary", max_tokens=8)
        return [fork.text() for fork in forks]

    state = tips.run(3, backend=backend, temperature=0)

    head = "Tips: 0.<8> 1.<14> 2.<21>"
    assert state.ret_value == [f"{head}\nTip {k}:<{len(head) + 7}>" for k in range(3)]
    assert state["detail"] == [f"<{len(head) + 7}>"] * 3
    assert state.text().startswith(head + "\nTip 0:<32>\nTip 1:<32>\nTip 2:<32>\nIn summary,<")


def test_a_loop_of_single_forks_does_all_of_its_work(backend: Backend, model: Model) -> None:
    """A replayed agent: what each fork says is thrown away, but it is computed."""

    @function
    def agent(s: State, steps: int) -> None:
        for k in range(steps):
            s += f"Thought {k}:"
            ss = s.fork(1)
            ss[0] += gen(name="thought", max_tokens=4)
            ss.join()
            s += " noted.\n"

    for state in agent.run_batch([{"steps": 4}, {"steps": 4}], backend=backend):
        assert "<" not in state.text()
        assert state["thought"] == [f"<{len(state.text()) - len(' noted.') - 1}>"]
    agent.run(4, backend=backend)

    assert len(model.prompts) == 12
    assert [prompt.count("Thought") for prompt in model.prompts[8:]] == [1, 2, 3, 4]


def test_a_judge_asks_in_forks_and_sums_up(backend: Backend) -> None:
    @function
    def judge(s: State, article: str, dimensions: list[str]) -> None:
        s += "Judge.\n" + article + "\n"
        forks = s.fork(len(dimensions))
        for k, dimension in enumerate(dimensions):
            forks[k] += f"By {dimension}:" + gen("judgement", max_tokens=8, stop="END")
        forks.join()
        for k, dimension in enumerate(dimensions):
            s += dimension + ": " + forks[k]["judgement"].strip() + "\n"
        s += "A score of" + select("score", [" 1", " 2"])

    entries = [{"article": "a" * k, "dimensions": ["form", "sense"]} for k in (3, 5)]
    first, second = judge.run_batch(entries, backend=backend, temperature=0, progress_bar=True)

    assert first.text() == "Judge.\naaa\nform: <19>\nsense: <20>\nA score of 2"
    assert second["judgement"] == ["<21>", "<22>"]


def test_a_tree_of_chats_is_joined_from_its_leaves_up(backend: Backend) -> None:
    """Tree of thought: forks of forks, joined in reverse order."""

    def branch(s: State, question: str, name: str) -> Any:
        s += user(question)
        forks = s.fork(2)
        forks += assistant(gen(name, max_tokens=8))
        return forks

    @function
    def search(s: State) -> list[list[str]]:
        s += system("Be brief.")
        levels = [branch(s, "Plan?", "plan")]
        solutions: list[State] = []
        for plan in levels[0]:
            levels.append(branch(plan, "Answer?", "answer"))
            solutions.extend(levels[-1])
        for solution in solutions:
            levels.append(branch(solution, "Score?", "score"))
        for forks in reversed(levels):
            forks.join()
        return s["answer"]

    state = search.run(backend=backend)

    assert [len(answers) for answers in state.ret_value] == [2, 2]
    assert [[len(scores) for scores in row] for row in state["score"]] == [[2, 2], [2, 2]]
    assert len(state["plan"]) == 2


def test_forks_that_are_not_joined_are_finished_before_the_run_is(
    backend: Backend, model: Model
) -> None:
    @function
    def ask(s: State, questions: list[str]) -> None:
        s += "A document. "
        forks = s.fork(len(questions))
        for fork, question in zip(forks, questions, strict=True):
            fork += question + gen("answer", max_tokens=4)

    ask.run(["who?", "why?"], backend=backend)
    assert sorted(model.prompts) == ["A document. who?", "A document. why?"]
    ask.run_batch([{"questions": ["how?"]}] * 3, backend=backend)
    assert len(model.prompts) == 5


def test_programs_that_a_program_runs_go_on_beside_it(backend: Backend, model: Model) -> None:
    """Tip suggestion: paragraphs are written while the next tip is."""

    @function
    def expand(s: State, tip: str) -> None:
        s += "Tip: " + tip + "\nParagraph:" + gen("paragraph", max_tokens=8)

    @function
    def suggest(s: State, count: int, reads: bool) -> None:
        s += "Tips:"
        paragraphs: list[State] = []
        for k in range(count):
            s += f" {k}." + gen(f"tip_{k}", max_tokens=4)
            paragraphs.append(expand(tip=s[f"tip_{k}"]))
        if reads:
            s += "".join(paragraph["paragraph"] for paragraph in paragraphs)

    set_default_backend(backend)
    try:
        state = suggest.run(2, reads=True)
        suggest.run(2, reads=False)
    finally:
        set_default_backend(None)

    assert state.text() == "Tips: 0.<8> 1.<14><19><20>"
    assert len(model.prompts) == 8


def test_a_copy_is_tried_and_what_is_wanted_of_it_is_said(backend: Backend) -> None:
    @function
    def attempts(s: State) -> None:
        s += user("Write it.")
        for k in range(2):
            with s.copy() as draft:
                draft += assistant(gen("draft", max_tokens=8))
                text = draft["draft"]
            with s.assistant():
                s += text
            with s.user():
                s += f"Error {k}."

    state = attempts.run(backend=backend)

    assert [message["role"] for message in state.messages()] == ["user", *["assistant", "user"] * 2]
    assert state["draft"] == [state.messages()[3]["content"]]


@pytest.mark.parametrize("streams", [False, True])
def test_forks_are_read_by_number_slice_and_loop(backend: Backend, streams: bool) -> None:
    @function
    def numbers(s: State) -> list[Any]:
        s += "n"
        forks = s.fork(4)
        forks += gen("same")
        forks[-1] += "last" + gen("x")
        forks[1:3] += "mid" + gen("x")
        for k, fork in enumerate(forks):
            fork += f"{k}"
        forks[0] += gen("x")
        forks.join()
        return [len(forks), len(forks[1:]), [f["x"] for f in forks[::2]], forks[3].get_var("x")]

    state = numbers.run(backend=backend, stream=streams)

    assert state.ret_value == [4, 3, ["<5>", "<7>"], "<8>"]
    assert state["x"] == ["<5>", "<7>", "<7>", "<8>"]
    assert "".join(state.text_iter()) == "n"


def test_async_programs_fork_the_same_way(backend: Backend, model: Model) -> None:
    @function
    async def agent(s: AsyncState) -> list[str]:
        for k in range(3):
            s += f"{k}:"
            ss = s.fork(2)
            ss[0] += "a" + gen("t", max_tokens=2)
            ss[1] += "b" + gen("t", max_tokens=2)
            ss.join()
        return await s["t"]

    assert agent.run(backend=backend).ret_value == ["<7>", "<7>"]
    assert len(model.prompts) == 6


def test_paragraphs_that_forks_write_are_appended(backend: Backend) -> None:
    """Long documents: each fork reads a part, and the parent has all of them."""

    @function(num_api_spec_tokens=64)
    def read(s: State) -> None:
        s += "Parts.\n"
        forks = s.fork(3, [0, 1000, 2000])
        forks += lambda k: f"Part {k}:" + gen("said", 8) + "\n"
        forks.join("concate_and_append")
        s += "Sum:" + gen("sum", 16, 0)

    state = read.run(backend=backend, top_k=-1.0)

    assert state.text() == "Parts.\nPart 0:<14>\nPart 1:<14>\nPart 2:<14>\nSum:<47>"
    assert str(state) == state.text()


def test_a_score_is_read_without_writing(backend: Backend, model: Model) -> None:
    @function
    def score(s: State) -> None:
        s += "Good?" + gen("none", max_tokens=0, return_logprob=True) + gen("x")

    state = score.run(backend=backend)

    assert (state["none"], state["x"]) == ("", "<5>")
    assert model.prompts == ["Good?", "Good?"]


def test_a_stream_is_read_with_its_facts(backend: Backend) -> None:
    @function
    def tell(s: State) -> None:
        s += "Once" + gen("x")

    async def read() -> list[tuple[str, Any]]:
        state = tell.stream(backend=backend)
        return [pair async for pair in state.text_async_iter("x", return_meta_data=True)]

    pairs = asyncio.run(read())

    assert "".join(text for text, _ in pairs) == "<4>"
    assert all("finish_reason" in facts for _, facts in pairs)


@function
def outside(s: State) -> None:
    """Ask in plain text below a system message, and go on in turns."""
    s += system("Hi") + "Q"
    s += gen("a") + user("more") + gen("b")


@function
def asked_by_the_model(s: State) -> None:
    s += user("Ask: " + gen("question"))


@pytest.mark.parametrize("name", ["endpoint", "local"])
def test_text_outside_of_turns_is_where_the_program_says_it(name: str, model: Model) -> None:
    backend = make_backend(name, model)
    state = outside.run(backend=backend)
    asked_by_the_model.run(backend=backend)

    assert state.text() == f"HiQ{state['a']}more{state['b']}"
    said = f"after 1: Q\nafter 1: {state['a']}"
    assert model.prompts == [
        "system: Hi\nafter 1: Q",
        f"system: Hi\nuser: more\n{said}",
        "user: Ask: ",
    ]
    assert [m["role"] for m in state.messages()] == ["system", "user"]


def test_what_openais_api_cannot_say_names_the_statement(model: Model) -> None:
    backend = make_backend("openai", model)

    with pytest.raises(BadRequest, match=r'gen\("a"\): .* no place for \'Q\' outside'):
        outside.run(backend=backend)
    with pytest.raises(BadRequest, match=r'gen\("question"\): .* assistant\(\.\.\.\)'):
        asked_by_the_model.run(backend=backend)
    assert model.prompts == []
