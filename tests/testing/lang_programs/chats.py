"""Programs that chat: turns, streams, several answers, turns that the model writes for the user."""

import asyncio

from runtime.lang.choices import unconditional_likelihood_normalized
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import assistant, assistant_begin, gen, select, system, user
from tests.testing.lang_programs.case import Case

TURNS = {"question_1": "My sister lives in Oslo.", "question_2": "Where does my sister live?"}


@function
def two_questions(s: State, question_1: str, question_2: str) -> None:
    s += system("You are a helpful assistant.")
    s += user(question_1)
    s += assistant(gen("answer_1", max_tokens=16))
    with s.user():
        s += question_2
    with s.assistant():
        s += gen("answer_2", max_tokens=16)


@function
def without_system(s: State, question_1: str, question_2: str) -> None:
    s += system()
    s += user(question_1)
    s += assistant(gen("answer_1"))
    s += user(question_2)
    s += assistant(gen("answer_2"))


@function(num_api_spec_tokens=256)
def fields(s: State) -> None:
    s += system("You are a helpful assistant.")
    s += user("Make up a person within the following format:")
    s += assistant("Name: Tom.\nBirthday: May 24.\nJob: Baker.\n")
    s += user("Please make up a new Name, Birthday and Job.\n")
    s += assistant(
        "Name:"
        + gen("name", stop="\n")
        + "\nBirthday:"
        + gen("birthday", stop="\n")
        + "\nJob:"
        + gen("job", stop="\n")
    )


@function
def several(s: State, question_1: str, question_2: str) -> None:
    s += system("You are a helpful assistant.")
    s += user(question_1)
    s += assistant(gen("answer_1", max_tokens=8, n=2))
    s += user(question_2)
    s += assistant(gen("answer_2", max_tokens=8))


@function
def long_answer(s: State) -> None:
    s += user("What is 12 + 30?")
    s += assistant(gen("answer", min_tokens=20, max_tokens=24))
    s += user("And now?") + assistant("It is " + gen("now", stop=[".", "!"]) + ".")
    s += user("Why?") + assistant(gen("why"))


@function
def streamed(s: State, question_1: str, question_2: str) -> list[str]:
    """Run the other one in both kinds of streams."""
    given = {"question_1": question_1, "question_2": question_2, "temperature": 0}
    state = two_questions.run(**given, stream=True, backend=s.executor.backend)
    texts = ["".join(state.text_iter(var_name="answer_2")), "".join(state.text_iter())]

    async def read() -> str:
        state = two_questions.run(**given, stream=True, backend=s.executor.backend)
        return "".join([out async for out in state.text_async_iter(var_name="answer_2")])

    return [*texts, asyncio.run(read())]


@function
def simulated(s: State) -> None:
    """Let the model ask, too."""
    s += system("You sort the mails of a shop into weather, market or music.")
    for k in range(2):
        s += user("Mail: " + gen(f"mail_{k}", max_tokens=8, ignore_eos=True))
        s += assistant(gen(f"topic_{k}", max_tokens=4) + ", it is.")


@function
def step_by_step(s: State, question: str, top: int) -> list[str]:
    """Go on behind each of the likeliest first tokens."""
    s += user("Question: " + question + "\nAnswer:")
    s += assistant_begin()
    step_0 = s.fork(1)[0]
    forks = s.fork(top)
    answer_forks = s.fork(top)
    step_0 += gen(
        "first",
        max_tokens=0,
        return_logprob=True,
        top_logprobs_num=top,
        return_text_in_logprobs=True,
    )
    likely = step_0.get_meta_info("first")["output_top_logprobs"][0]
    for fork, answered, (_, _, text) in zip(forks, answer_forks, likely, strict=True):
        fork += text
        fork += gen("answer", max_tokens=8, return_logprob=True, top_logprobs_num=2)
        assert all(len(row) == 2 for row in fork.get_meta_info("answer")["output_top_logprobs"])
        answered += text + fork["answer"] + "\nSo the answer is"
        answered += gen("span", max_tokens=4)
    return [answered["span"] for answered in answer_forks]


@function
def selected(s: State, question: str) -> None:
    s += user(question)
    s += assistant("I choose " + select("topic", ["weather", "market", "music"]) + ".")
    s += user("Sure?") + assistant(
        select("sure", ["Yes", "No"], choices_method=unconditional_likelihood_normalized)
    )


CASES = {
    "two questions": Case(two_questions, [TURNS]),
    "without system": Case(without_system, [TURNS, {**TURNS, "question_2": "Who lives there?"}]),
    "fields": Case(fields),
    "several": Case(several, [TURNS]),
    "long answer": Case(long_answer),
    "streamed": Case(streamed, [TURNS]),
    "simulated": Case(simulated, native=True),
    "step by step": Case(step_by_step, [{"question": "What is 12 + 30?", "top": 3}]),
    "selected": Case(selected, [{"question": "Oslo has 7 degrees."}], native=True),
}
