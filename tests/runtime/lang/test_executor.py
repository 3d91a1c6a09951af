"""Tests of runtime.lang.executor: order, failure, forks, cancellation."""

import gc
import threading
import weakref

import pytest

from runtime.errors import Aborted, BadRequest
from runtime.lang.choices import unconditional_likelihood_normalized
from runtime.lang.executor import Executor
from runtime.lang.ir import Begin, End, Gen, Mark, Select, Text
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Written
from runtime.lang.sampling import Sampling
from tests.runtime.lang.fake import FakeBackend

WAIT_S = 60.0


def test_what_is_said_is_walked_in_order() -> None:
    backend = FakeBackend()
    executor = Executor(backend, Sampling(max_tokens=5))
    executor.say("a" + Gen("x", Sampling(temperature=0.0)) + "b" + Gen("y"))

    assert executor.read("y").result(WAIT_S).value == "<5>"
    assert executor.read("x").result(WAIT_S).meta_info == {"prompt": "a"}
    assert backend.prompts == ["a", "a<1>b"]
    assert backend.samplings == [Sampling(max_tokens=5, temperature=0.0), Sampling(max_tokens=5)]
    assert executor.log.pieces == [(None, "a"), ("x", "<1>"), (None, "b"), ("y", "<5>")]


def test_what_the_model_wrote_is_sent_back_as_ids() -> None:
    executor = Executor(FakeBackend(), Sampling())
    executor.say("a" + Gen("x"))
    executor.settled().result(WAIT_S)

    assert executor._transcript.prompt().pieces == ("a", Written("<1>", tuple(b"<1>")))


def test_text_alone_asks_nobody() -> None:
    executor = Executor(FakeBackend(), Sampling())
    executor.say(Text("a"))

    assert executor.log.pieces == []
    executor.settled().result(WAIT_S)
    assert executor.log.text() == "a"


def test_several_choices_are_a_list_and_the_first_goes_on() -> None:
    executor = Executor(FakeBackend(), Sampling())
    executor.say("a" + Gen("x", Sampling(n=3)))

    value = executor.read("x").result(WAIT_S)

    assert value.value == ["<1>", "<1>'", "<1>''"]
    assert len(value.meta_info) == 3
    assert executor.log.text() == "a<1>"


def test_a_select_is_one_call_and_says_its_choice() -> None:
    backend = FakeBackend()
    executor = Executor(backend, Sampling())
    executor.say("a" + Select("x", ("yes", "no"), unconditional_likelihood_normalized))

    value = executor.read("x").result(WAIT_S)

    assert value.value == "no"
    assert value.meta_info["prompt_tokens"] == 1
    assert value.meta_info["normalized_prompt_logprobs"] == [0.0, 1.0]
    assert backend.scored == [("a", ("yes", "no"), True)]
    assert executor.log.text() == "ano"


def test_a_failure_is_raised_where_something_is_missing_for_it() -> None:
    backend = FakeBackend()
    executor = Executor(backend, Sampling())
    executor.say("a" + Gen("x"))
    executor.read("x").result(WAIT_S)
    backend.error = BadRequest("no")
    executor.say(Gen("y") + Gen("z"))

    for promise in (executor.read("y"), executor.read("z"), executor.settled()):
        with pytest.raises(BadRequest, match="no"):
            promise.result(WAIT_S)
    executor.say(Gen("w"))
    with pytest.raises(BadRequest, match="no"):
        executor.read("w").result(WAIT_S)
    assert executor.read("x").result(WAIT_S).value == "<1>"
    assert len(backend.prompts) == 2


def test_a_stream_is_logged_piece_by_piece() -> None:
    executor = Executor(FakeBackend(), Sampling(), streams=True)
    executor.say("a" + Gen("x"))

    assert executor.read("x").result(WAIT_S).meta_info == {"streamed": True}
    assert executor.log.pieces == [(None, "a"), ("x", "<"), ("x", "1"), ("x", ">")]


def test_a_scope_keeps_all_that_is_said_in_it() -> None:
    executor = Executor(FakeBackend(), Sampling())
    executor.say("a" + (Mark("s", opens=True) + Gen("x") + "b" + Mark("s", opens=False)) + "c")

    assert executor.read("s").result(WAIT_S).value == "<1>b"


def test_a_scope_may_stand_in_one_of_the_same_name() -> None:
    executor = Executor(FakeBackend(), Sampling())
    opens, closes = Mark("s", opens=True), Mark("s", opens=False)

    executor.say(opens + "a" + opens + "b" + closes)
    inner = executor.read("s")
    executor.say("c" + closes)

    assert inner.result(WAIT_S).value == "b"
    assert executor.read("s").result(WAIT_S).value == "abc"


def test_forks_share_what_was_said_and_it_is_computed_once_before() -> None:
    backend = FakeBackend()
    parent = Executor(backend, Sampling())
    parent.say("a" + Gen("x"))
    children = parent.fork(3, None)
    for number, child in enumerate(children):
        child.say(f"-{number}" + Gen("y"))
    parent.say(Text("-p"))

    assert [c.read("y").result(WAIT_S).meta_info["prompt"] for c in children] == [
        f"a<1>-{number}" for number in range(3)
    ]
    assert backend.cached == ["a<1>"]
    assert children[0].read("x").result(WAIT_S).value == "<1>"
    parent.settled().result(WAIT_S)
    assert parent.log.text() == "a<1>-p"


def test_a_single_fork_computes_nothing_beforehand() -> None:
    backend = FakeBackend()
    parent = Executor(backend, Sampling())
    parent.say(Text("a"))
    [child] = parent.fork(1, None)

    child.settled().result(WAIT_S)

    assert backend.cached == []


def test_gathering_waits_for_the_children_and_passes_on_their_failures() -> None:
    backend = FakeBackend()
    parent = Executor(backend, Sampling())
    parent.say("a" + Gen("x"))
    children = parent.fork(2, None)
    for child in children:
        child.say(Gen("y"))
    children[0].say(Begin("user") + End("system") + Gen("z"))
    parent.gather(children, None)
    parent.say(Text("after"))

    assert parent.read("y").result(WAIT_S).value == ["<4>", "<4>"]
    with pytest.raises(BadRequest):
        parent.read("z").result(WAIT_S)
    with pytest.raises(BadRequest):
        parent.settled().result(WAIT_S)


def test_cancelling_ends_the_request_and_what_follows() -> None:
    backend = FakeBackend()
    backend.hold()
    parent = Executor(backend, Sampling())
    [child] = parent.fork(1, None)
    for executor in (parent, child):
        executor.say(Gen("x") + Gen("y"))
        assert backend.asked.acquire(timeout=WAIT_S)

    parent.cancel()

    for _ in range(2):
        assert backend.ended.acquire(timeout=WAIT_S)
    for executor in (parent, child):
        for name in ("x", "y"):
            with pytest.raises(Aborted):
                executor.read(name).result(WAIT_S)
    assert backend.cancelled == 2
    executor = parent
    executor.say(Gen("z"))
    with pytest.raises(Aborted):
        executor.read("z").result(WAIT_S)


def test_a_long_line_of_forks_is_cancelled() -> None:
    line = [Executor(FakeBackend(), Sampling())]
    for _ in range(1100):
        line += line[-1].fork(1, None)

    line[0].cancel()

    with pytest.raises(Aborted):
        line[-1].settled().result(WAIT_S)


def test_many_threads_may_say_things_at_once() -> None:
    backend = FakeBackend(lambda text: ".")
    executor = Executor(backend, Sampling())

    def say() -> None:
        for _ in range(50):
            executor.say(Text("a"))
            executor.say(Gen(None))

    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    executor.settled().result(WAIT_S)

    assert sorted(executor.log.text()) == ["."] * 400 + ["a"] * 400


@pytest.mark.parametrize("when", ["before", "after"])
def test_cancelling_reaches_below_a_fork_that_is_gone(when: str) -> None:
    backend = FakeBackend()
    backend.hold()
    parent = Executor(backend, Sampling())
    [between] = parent.fork(1, None)
    [low] = between.fork(1, None)
    low.settled().result(WAIT_S)
    gone = weakref.ref(between)
    del between
    until_gone(gone)
    # A fork that is made afterwards belongs to whoever of those above lives.
    [lowest] = low.fork(1, None) if when == "after" else [low]
    lowest.say(Gen("x") + Gen("y"))
    assert backend.asked.acquire(timeout=WAIT_S)

    parent.cancel()

    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1
    with pytest.raises(Aborted):
        lowest.read("y").result(WAIT_S)


def test_forks_that_are_gone_leave_no_trace() -> None:
    backend = FakeBackend()
    parent = Executor(backend, Sampling())
    last, side = parent, parent.fork(2, None)
    for _ in range(20):
        side = parent.fork(2, None)
        settle(side)
        [last] = last.fork(1, None)
        settle([last])
    gone = weakref.ref(side[0])
    del side
    until_gone(gone)

    assert len(parent._member.below) <= 3
    assert last._member.parent is not None
    settle(last.fork(1, None))
    assert last._member.parent is parent._member


def test_a_fork_of_what_was_cancelled_is_cancelled() -> None:
    backend = FakeBackend()
    parent = Executor(backend, Sampling())
    parent.settled().result(WAIT_S)
    parent.cancel()
    [fork] = parent.fork(1, None)
    fork.say(Gen("x"))

    with pytest.raises(Aborted):
        fork.read("x").result(WAIT_S)
    assert backend.prompts == []


def test_what_is_walked_already_is_settled_at_once() -> None:
    executor = Executor(FakeBackend(), Sampling())
    executor.say("a" + Gen("x"))
    executor.settled().result(WAIT_S)
    executor.say(Text("b"))
    pending = executor.settled()
    pending.result(WAIT_S)
    LOOP.submit(nothing()).result(WAIT_S)

    assert executor.settled().done()
    assert executor.log.text() == "a<1>b"
    executor.cancel()
    with pytest.raises(Aborted):
        executor.settled().result(WAIT_S)


def test_a_program_taken_in_ends_and_keeps_what_it_had() -> None:
    backend = FakeBackend()
    outer, over, running = (Executor(backend, Sampling()) for _ in range(3))
    over.say("a" + Gen("x"))
    over.settled().result(WAIT_S)
    outer.take_in(over)
    outer.take_in(running)
    backend.hold()
    running.say(Gen("y"))
    for _ in range(2):
        assert backend.asked.acquire(timeout=WAIT_S)

    outer.cancel()

    with pytest.raises(Aborted):
        running.read("y").result(WAIT_S)
    over.settled().result(WAIT_S)
    assert over.log.text() == "a<1>"
    over.say(Text("more"))
    with pytest.raises(Aborted):
        over.settled().result(WAIT_S)
    late = Executor(backend, Sampling())
    outer.take_in(late)
    late.say(Gen("z"))
    with pytest.raises(Aborted):
        late.read("z").result(WAIT_S)


def test_what_is_said_in_a_fork_of_what_failed_is_lost_at_once() -> None:
    backend = FakeBackend()
    backend.error = BadRequest("no")
    parent = Executor(backend, Sampling())
    parent.say(Gen("x"))
    error = parent.read("x").exception(WAIT_S)
    assert parent.group.failure() is error
    assert error is not None
    parent.mark_read(error)
    assert parent.group.failure() is None
    go_on = threading.Event()
    LOOP.call(go_on.wait, WAIT_S)
    try:
        [child] = parent.fork(1, None)
        assert parent.group.failure() is None
        child.say(Gen("y"))
        assert parent.group.failure() is error
    finally:
        go_on.set()


def settle(executors: "list[Executor]") -> None:
    for executor in executors:
        executor.settled().result(WAIT_S)


def until_gone(ref: "weakref.ref[Executor]") -> None:
    """Wait for the loop to let go of an executor that nobody holds."""
    for _ in range(10):
        LOOP.submit(nothing()).result(WAIT_S)
        gc.collect()
        if ref() is None:
            return
    raise AssertionError("the executor is still there")


async def nothing() -> None:
    """Pass through the loop once."""
