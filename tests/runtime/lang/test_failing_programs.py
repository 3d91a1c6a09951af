"""What a program fails with, and where it is raised: on all three backends."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import BadRequest, RequestError, Unavailable
from runtime.lang.backend import Backend
from runtime.lang.bodies import wait_over
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.program import Program, function
from runtime.lang.state import AsyncState, State
from runtime.lang.words import gen, select, user
from tests.runtime.lang.three_backends import NAMES, Model, make_backend

HOT = 9


@pytest.fixture
def model() -> Model:
    """What answers each prompt with its length."""
    return Model()


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, model: Model) -> Backend:
    """Each of the three."""
    return make_backend(request.param, model)


def plain(s: State) -> None:
    s += "a" + gen("first") + "b" + gen("answer", temperature=HOT)


def in_a_chat(s: State) -> None:
    s += user("hi")
    with s.assistant():
        s += gen("answer", temperature=HOT)


def read_in_the_body(s: State) -> str:
    s += "a" + gen("answer", temperature=HOT)
    return s["answer"]


def in_a_joined_fork(s: State) -> None:
    forks = s.fork(2)
    forks[1] += gen("answer", temperature=HOT)
    forks.join()
    s += "and" + gen("never")


def in_a_fork_that_is_not_joined(s: State) -> None:
    s += "a"
    forks = s.fork(2)
    forks[0] += gen("right")
    forks[1] += gen("answer", temperature=HOT)


def in_a_fork_of_a_fork(s: State) -> None:
    [outer] = s.fork(1)
    inner = outer.fork(2)
    inner[0] += gen("answer", temperature=HOT)
    inner.join()


def in_a_second_join(s: State) -> None:
    forks = s.fork(2)
    forks += gen("answer")
    forks.join()
    forks[0] += gen("answer", temperature=HOT)
    forks.join()


def in_a_fork_after_its_join(s: State) -> None:
    forks = s.fork(2)
    forks += gen("x")
    forks.join()
    forks[0] += gen("answer", temperature=HOT)


def in_a_copy(s: State) -> None:
    with s.copy() as copy:
        copy += gen("answer", temperature=HOT)


def in_another_program(s: State) -> None:
    function(plain).run(backend=s.executor.backend)


async def in_an_async_body(s: AsyncState) -> None:
    s += "a" + gen("answer", temperature=HOT)


async def in_an_awaited_program(s: AsyncState) -> None:
    await function(plain).arun(backend=s.executor.backend)


BODIES = [
    plain,
    read_in_the_body,
    in_a_joined_fork,
    in_a_fork_that_is_not_joined,
    in_a_chat,
    in_a_fork_of_a_fork,
    in_a_second_join,
    in_a_fork_after_its_join,
    in_a_copy,
    in_another_program,
    in_an_async_body,
    in_an_awaited_program,
]


def run(program: Program, backend: Backend) -> None:
    program.run(backend=backend)


def arun(program: Program, backend: Backend) -> None:
    asyncio.run(program.arun(backend=backend))


def run_batch(program: Program, backend: Backend) -> None:
    program.run_batch([{}], backend=backend)


def run_batch_lazily(program: Program, backend: Backend) -> None:
    list(program.run_batch([{}], backend=backend, generator_style=True))


def stream(program: Program, backend: Backend) -> None:
    list(program.stream(backend=backend).text_iter())


def sync(program: Program, backend: Backend) -> None:
    program.stream(backend=backend).sync()


def stream_async(program: Program, backend: Backend) -> None:
    async def read() -> list[str]:
        return [piece async for piece in program.stream(backend=backend).text_async_iter()]

    asyncio.run(read())


WAYS = [run, arun, run_batch, run_batch_lazily, stream, sync, stream_async]
# Some bodies in every way, and the others in those ways that differ most.
CASES = [
    *[(body, way) for body in BODIES[:4] for way in WAYS],
    *[(body, way) for body in BODIES[4:] for way in (run, run_batch, stream)],
]


@pytest.mark.parametrize(("body", "way"), CASES)
def test_a_refused_generation_is_raised_by_name(
    backend: Backend, body: Callable[..., Any], way: Callable[[Program, Backend], None]
) -> None:
    with pytest.raises(BadRequest) as caught:
        way(function(body), backend)

    where = "batch[0]: " if "batch" in way.__name__ else ""
    assert str(caught.value) == f'{where}gen("answer"): temperature must be between 0 and 2, got 9'
    assert (caught.value.status, caught.value.param) == (400, "temperature")


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_gone_is_raised(
    backend: Backend, model: Model, way: Callable[[Program, Backend], None]
) -> None:
    @function
    def choose(s: State) -> None:
        s += "a" + select("word", ["b", "c"])

    model.is_dead = True

    with pytest.raises(Unavailable, match=r'select\("word"\): .*(does not answer|shut down)'):
        way(choose, backend)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_body_raises_is_raised(
    backend: Backend, way: Callable[[Program, Backend], None]
) -> None:
    @function
    def broken(s: State) -> None:
        s += "a" + gen("x", temperature=HOT)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        way(broken, backend)

    notes = getattr(caught.value, "__notes__", [])
    assert notes == (["in batch[0]"] if "batch" in way.__name__ else [])
    shown = "".join(traceback.format_exception(caught.value))
    assert 'raise ZeroDivisionError("mine")' in shown


def test_a_fork_that_cannot_begin_says_so(backend: Backend, model: Model) -> None:
    @function
    def branch(s: State) -> None:
        s += "a"
        forks = s.fork(2)
        forks += gen("x")

    model.is_dead = True
    # OpenAI's API computes nothing beforehand.
    first = r"gen\(\"x\"\)" if isinstance(backend, OpenAI) else "fork"

    with pytest.raises(Unavailable, match=f"^{first}: "):
        branch.run(backend=backend)


def test_a_default_that_is_refused_names_the_generation(backend: Backend) -> None:
    @function
    def ask(s: State) -> None:
        s += "a" + gen() + gen("x")

    with pytest.raises(BadRequest, match=r"^gen\(\): temperature"):
        ask.run(backend=backend, temperature=-1)


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_failed_generation_has_a_short_traceback(
    backend: Backend, model: Model, is_dead: bool
) -> None:
    model.is_dead = is_dead

    for body in (plain, read_in_the_body):
        with pytest.raises(RequestError) as caught:
            function(body).run(backend=backend)
        lines = "".join(traceback.format_exception(caught.value)).splitlines()
        assert len(lines) <= 12
        assert sum("Traceback" in line for line in lines) == 1
        assert all("test_failing_programs.py" in line for line in lines if "File" in line)
        assert lines[-1].startswith("runtime.errors.")
        assert 'gen("' in lines[-1]


def reads_it(s: State) -> str:
    if "x" not in s:
        s += "a" + gen("x", temperature=HOT)
    try:
        return s["x"]
    except BadRequest:
        return "handled"


def looks_at_the_error(s: State) -> str:
    s += "a" + gen("x", temperature=HOT)
    return "handled" if isinstance(s.error(), BadRequest) else "right"


def reads_it_in_a_fork(s: State) -> str:
    forks = s.fork(2)
    forks += lambda k: gen("x", temperature=k * HOT)
    try:
        return "".join(fork["x"] for fork in forks)
    except BadRequest:
        return "handled"


def reads_it_from_a_join(s: State) -> str:
    forks = s.fork(3)
    forks += gen("x", temperature=HOT)
    forks.join()
    return reads_it(s)


def reads_it_from_a_join_of_what_had_failed(s: State) -> str:
    forks = s.fork(2)
    forks += gen("x", temperature=HOT)
    for fork in forks:
        wait_over(fork.executor.settled())
    forks.join()
    return reads_it(s)


def reads_it_in_a_fork_of_what_failed(s: State) -> str:
    s += "a" + gen("x", temperature=HOT)
    return reads_it(s.fork(1)[0])


def reads_it_while_forks_wait(s: State) -> str:
    s += "a" + gen("x", temperature=HOT)
    forks = s.fork(2)
    forks += gen("y")
    return reads_it(s)


def cancels_a_fork(s: State) -> str:
    forks = s.fork(2)
    forks[0].cancel()
    return "handled"


async def awaits_it(s: AsyncState) -> str:
    s += "a" + gen("x", temperature=HOT)
    try:
        return await s["x"]
    except BadRequest:
        return "handled"


async def awaits_a_program(s: AsyncState) -> str:
    try:
        await function(plain).arun(backend=s.executor.backend)
    except BadRequest:
        return "handled"
    return "right"


@pytest.mark.parametrize(
    "body",
    [
        reads_it,
        reads_it_while_forks_wait,
        looks_at_the_error,
        reads_it_in_a_fork,
        reads_it_from_a_join,
        reads_it_from_a_join_of_what_had_failed,
        reads_it_in_a_fork_of_what_failed,
        cancels_a_fork,
        awaits_it,
        awaits_a_program,
    ],
)
def test_a_failure_that_the_body_handles_is_not_raised_again(
    backend: Backend, body: Callable[..., Any]
) -> None:
    program = function(body)

    assert program.run(backend=backend).ret_value == "handled"
    assert [s.ret_value for s in program.run_batch([{}] * 2, backend=backend)] == ["handled"] * 2
    assert asyncio.run(program.arun(backend=backend)).ret_value == "handled"


def goes_on(s: State) -> None:
    s += "a" + gen("x", temperature=HOT)
    assert s.error() is not None
    s += gen("y")


def goes_on_in_forks(s: State) -> None:
    s += "a" + gen("x", temperature=HOT)
    assert s.error() is not None
    forks = s.fork(2)
    forks += gen("y")


def joins_afterwards(s: State) -> None:
    forks = s.fork(2)
    forks += gen("x", temperature=HOT)
    assert all(fork.error() is not None for fork in forks)
    forks.join()
    s += gen("summary")


def handles_one_of_two(s: State) -> None:
    forks = s.fork(2)
    forks += gen("x", temperature=HOT)
    assert forks[0].error() is not None


@pytest.mark.parametrize("body", [goes_on, goes_on_in_forks, joins_afterwards, handles_one_of_two])
def test_what_is_lost_after_a_failure_was_handled_is_raised(
    backend: Backend, body: Callable[..., Any]
) -> None:
    with pytest.raises(BadRequest, match=r'gen\("x"\)'):
        function(body).run(backend=backend)


def test_a_failure_is_shown_to_every_reader_of_a_stream(backend: Backend) -> None:
    state = function(in_a_fork_that_is_not_joined).stream(backend=backend)

    for _ in range(2):
        assert isinstance(state.error(), BadRequest)
        with pytest.raises(BadRequest):
            state.text()
