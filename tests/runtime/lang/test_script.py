"""Tests of runtime.lang.script: what a program writes, forks, and who owns what is under way."""

import gc
from contextlib import suppress

import pytest

from runtime.errors import BadRequest
from runtime.lang.executor import Executor
from runtime.lang.sampling import Sampling
from runtime.lang.state import State
from runtime.lang.words import assistant, gen, user, user_end
from tests.runtime.lang.fake import FakeBackend

WAIT_S = 60.0


def state_of(backend: FakeBackend) -> State:
    return State(Executor(backend, Sampling()))


def test_roles_as_calls_and_as_blocks_say_the_same() -> None:
    calls, blocks = state_of(FakeBackend()), state_of(FakeBackend())
    calls.system("be brief")
    calls += user("hi")
    calls.assistant(gen("a"))
    with blocks.system():
        blocks += "be brief"
    with blocks.user():
        blocks += "hi"
    with blocks.assistant():
        blocks += gen("a")

    assert calls.messages() == blocks.messages()
    assert [m["role"] for m in calls.messages()] == ["system", "user", "assistant"]
    assert calls.messages()[2]["content"] == calls["a"]


def test_variables_can_be_set_and_asked_for() -> None:
    state = state_of(FakeBackend())
    state["k"] = 3
    state.set_var("l", [1])

    assert ("k" in state, "m" in state) == (True, False)
    assert (state["k"], state["l"]) == (3, [1])


def test_a_scope_becomes_a_variable() -> None:
    state = state_of(FakeBackend())
    with state.var_scope("both"):
        state += "a" + gen("x")

    assert state["both"] == "a<1>"


def test_a_scope_that_an_exception_leaves_has_what_was_said_until_then() -> None:
    state = state_of(FakeBackend())
    with suppress(ZeroDivisionError), state.var_scope("a"):
        state += "b"
        raise ZeroDivisionError
    state += "c"

    assert state["a"] == "b"


def test_forks_say_the_same_their_own_or_what_their_index_gives() -> None:
    state = state_of(FakeBackend(lambda text: text[-1]))
    forks = state.fork(2)
    forks += "a"
    forks += ["b", "c"]
    forks += lambda index: f"{index}" + gen("x")
    forks.join()

    assert [fork.text() for fork in forks] == ["ab00", "ac11"]
    assert state["x"] == ["0", "1"]
    assert (len(forks), forks[1]["x"]) == (2, "1")
    with pytest.raises(ValueError, match="2 forks need as many texts, not 1"):
        forks += ["a"]
    assert [fork.text() for fork in forks] == ["ab00", "ac11"], "nothing was said"


def test_a_fork_is_changed_by_its_number_and_never_replaced() -> None:
    state = state_of(FakeBackend())
    forks = state.fork(3)
    forks[0] += "a" + gen("x")
    forks[-1] += "b"
    forks[1:] += "c"
    forks[1] += user("no")

    assert [fork.text() for fork in (forks[0], forks[2])] == ["a<1>", "bc"]
    for replace in (
        lambda: forks.__setitem__(0, "text"),
        lambda: forks.__setitem__(0, forks[1]),
        lambda: forks.__setitem__(slice(0, 2), forks[0]),
        lambda: forks.__setitem__(slice(0, 2), forks[1:]),
        lambda: forks.__setitem__(0, None),
    ):
        with pytest.raises(TypeError, match="cannot be replaced"):
            replace()
    with pytest.raises(TypeError, match=r"forks\[0\]\['x'\]"):
        forks.__getitem__("x")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(IndexError):
        forks.__getitem__(3)
    assert list(forks) == forks.states


def test_offsets_of_positions_are_ignored() -> None:
    state = state_of(FakeBackend())
    state += "a"

    assert len(state.fork(2, position_ids_offset=None)) == 2
    forks = state.fork(4, [0, 1000])
    forks += gen("x")
    assert [fork["x"] for fork in forks] == ["<1>"] * 4
    with state.copy([1000]) as copy:
        copy += gen("x")
    assert state["x"] == ["<1>"]


def test_a_copy_is_joined_where_its_block_ends() -> None:
    backend = FakeBackend()
    state = state_of(backend)
    with state.copy() as copy:
        copy += "b" + gen("x")
        del copy
    state += "a"

    assert (state.text(), state["x"]) == ("a", ["<1>"])


def test_every_join_waits_for_all_that_its_forks_say() -> None:
    backend = FakeBackend()
    backend.hold()
    state = state_of(backend)

    def branch() -> None:
        forks = state.fork(2)
        forks[0] += "a" + gen("x")
        forks[1] += gen() + "b"
        forks.join()

    for _ in range(3):
        branch()
    gc.collect()
    backend.release()
    state.sync()

    assert len(backend.prompts) == 6
    assert backend.cancelled == 0


def test_a_join_without_variables_waits_all_the_same() -> None:
    backend = FakeBackend()
    backend.hold()
    state = state_of(backend)
    forks = state.fork(1)
    forks += "a" + gen()
    forks.join()
    del forks
    state += "b" + gen("x")
    gc.collect()
    assert backend.asked.acquire(timeout=WAIT_S)
    backend.release()

    assert state["x"] == "<1>"
    assert (backend.prompts, backend.cancelled) == (["a", "b"], 0)


def test_a_later_join_defines_anew_what_an_earlier_one_has_defined() -> None:
    state = state_of(FakeBackend())
    state += gen("own")
    for k in range(3):
        forks = state.fork(2)
        forks += f"{k}" * (k + 1) + gen("x") + gen("own")
        forks.join()
    forks = state.fork(1)
    forks += gen("y")
    forks.join()

    assert state["x"] == ["<6>", "<6>"]
    assert (state["own"], state["y"]) == ("<0>", ["<3>"])


def test_a_second_join_of_the_same_forks_gives_what_they_say_now() -> None:
    state = state_of(FakeBackend())
    forks = state.fork(2)
    forks += gen("x")
    forks.join()
    forks[1] += gen("x") + gen("y")
    forks.join()

    assert (state["x"], state["y"]) == (["<0>", "<3>"], ["<6>"])


def test_forks_of_a_joined_fork_may_be_joined_first_or_last() -> None:
    for inner_first in (True, False):
        state = state_of(FakeBackend())
        outer = state.fork(1)
        inner = outer[0].fork(2)
        inner += gen("x")
        for forks in (inner, outer) if inner_first else (outer, inner):
            forks.join()
        state.sync()
        outer[0].sync()

        assert outer[0]["x"] == ["<0>", "<0>"]
        assert ("x" in state) == inner_first


def test_a_join_gathers_only_what_is_new_and_knows_two_modes() -> None:
    state = state_of(FakeBackend())
    state += gen("old")
    forks = state.fork(2)
    forks += gen("new")
    forks.join()

    assert (state["old"], state["new"]) == ("<0>", ["<3>", "<3>"])
    with pytest.raises(ValueError, match="gather_variable or concate_and_append, not 'sum'"):
        forks.join("sum")
    with pytest.raises(ValueError, match="at least one"):
        state.fork(0)


def test_a_join_may_append_what_its_forks_have_said_until_then() -> None:
    backend = FakeBackend()
    state = state_of(backend)
    state += "a" + gen("old")
    forks = state.fork(2)
    forks += lambda k: f"{k}:" + gen("new") + "."
    forks.join("concate_and_append")
    forks[0] += "later"
    state += "Sum:" + gen("sum")

    assert state.text() == "a<1>0:<6>.1:<6>.Sum:<20>"
    assert state["new"] == ["<6>", "<6>"]
    assert backend.prompts[-1] == "a<1>0:<6>.1:<6>.Sum:"


def test_turns_that_forks_have_said_are_appended_as_turns() -> None:
    state = state_of(FakeBackend())
    state += user("hi")
    forks = state.fork(2)
    for k, fork in enumerate(forks):
        fork += user(str(k)) + assistant(gen("x"))
    forks.join("concate_and_append")

    assert [(m["role"], m["content"]) for m in state.messages()][1:] == [
        ("user", "0"),
        ("assistant", state["x"][0]),
        ("user", "1"),
        ("assistant", state["x"][1]),
    ]


def test_a_fork_that_fails_fails_what_follows_an_appending_join() -> None:
    backend = FakeBackend()
    state = state_of(backend)
    forks = state.fork(2)
    forks[0] += "a"
    forks[1] += user("b") + user_end()
    forks.join("concate_and_append")
    state += gen("x")

    with pytest.raises(BadRequest, match="no turn is open"):
        state.get_var("x")
    assert backend.prompts == []


def test_a_copy_leaves_the_state_as_it_was() -> None:
    state = state_of(FakeBackend())
    state += "a"
    with state.copy() as copy:
        copy += "b" + gen("x")
        assert copy["x"] == "<2>"

    assert state.text() == "a"


def test_a_state_that_nobody_holds_ends_its_request() -> None:
    backend = FakeBackend()
    backend.hold()
    state = state_of(backend)
    state += gen("x")
    assert backend.asked.acquire(timeout=WAIT_S)

    del state
    gc.collect()

    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1


def test_joined_forks_that_nobody_else_holds_are_finished() -> None:
    backend = FakeBackend()
    backend.hold()
    state = state_of(backend)
    forks = state.fork(2)
    forks += gen("x")
    forks.join()
    del forks
    gc.collect()
    backend.release()

    assert state["x"] == ["<0>", "<0>"]


def test_forks_outlive_the_state_they_came_from() -> None:
    backend = FakeBackend()
    backend.hold()
    state = state_of(backend)
    state += "a" + gen("x")
    forks = state.fork(2)
    forks += gen("y")
    kept = list(forks)
    del state, forks
    gc.collect()
    backend.release()

    assert [fork["y"] for fork in kept] == ["<4>", "<4>"]


def test_a_fork_of_a_failed_state_fails_like_it() -> None:
    backend = FakeBackend()
    backend.error = BadRequest("no")
    state = state_of(backend)
    state += gen("x")
    fork = state.fork(2)[0]

    with pytest.raises(BadRequest, match="no"):
        fork.text()


def test_a_role_that_was_said_by_its_call_is_said_once() -> None:
    """SGLang's tutorial writes `s += s.system(...)`."""
    state, other = state_of(FakeBackend()), state_of(FakeBackend())

    state += state.system("be brief")

    assert state.messages() == [{"role": "system", "content": "be brief"}]
    with pytest.raises(TypeError, match="Turn"):
        state += other.system("not mine")
    with pytest.raises(TypeError, match="Turn"):
        state += state.user()
