"""Tests of runtime.lang.bodies: what waits lets others run."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from greenlet import getcurrent, greenlet

from runtime.lang.bodies import BodyThreads, wait
from runtime.lang.loop import LOOP


def until(event: threading.Event) -> None:
    event.wait(60)


def test_a_thousand_waiting_bodies_need_one_thread() -> None:
    threads, go = BodyThreads(max_threads=1), Future[int]()
    results: list[Future[int]] = [Future() for _ in range(1000)]
    seen: set[threading.Thread] = set()

    def body(result: "Future[int]") -> None:
        value = wait(go)
        seen.add(threading.current_thread())
        result.set_result(value)

    for result in results:
        threads.start(lambda result=result: body(result))
    assert not any(result.done() for result in results)
    go.set_result(3)

    assert [result.result(60) for result in results] == [3] * 1000
    assert len(seen) == 1


def test_a_body_that_blocks_holds_up_its_thread_alone() -> None:
    threads, blocked, release = BodyThreads(max_threads=2), threading.Event(), threading.Event()
    done: Future[None] = Future()

    def block() -> None:
        blocked.set()
        release.wait(60)

    threads.start(block)
    assert blocked.wait(60)
    threads.start(lambda: done.set_result(None))

    done.result(60)
    release.set()


def test_a_new_body_begins_where_no_other_waits() -> None:
    threads, go, parked, release = BodyThreads(), Future[int](), Future[int](), threading.Event()

    def wait_here() -> None:
        threading.Timer(0.0, go.set_result, (1,)).start()
        parked.set_result(wait(go))

    threads.start(wait_here)
    threads.start(lambda: until(release))

    assert parked.result(60) == 1
    release.set()


def test_a_body_sees_the_context_it_was_started_in() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    threads, first, second = BodyThreads(max_threads=1), Future[str](), Future[str]()
    name.set("a")
    threads.start(lambda: first.set_result(name.get()))
    name.set("b")
    threads.start(lambda: second.set_result(name.get()))

    assert (first.result(60), second.result(60)) == ("a", "b")


def test_outside_of_bodies_waiting_blocks_and_raises() -> None:
    future: Future[int] = Future()
    threading.Timer(0.0, future.set_exception, (ValueError("no"),)).start()

    with pytest.raises(ValueError, match="no"):
        wait(future)


def test_nobody_blocks_in_the_event_loop() -> None:
    async def read() -> None:
        wait(Future[int]())

    with pytest.raises(RuntimeError, match="must await"):
        LOOP.submit(read()).result(60)


def test_bodies_that_block_on_others_do_not_do_so_for_ever() -> None:
    threads = BodyThreads(max_threads=2, patience_s=0.01)

    def outer(result: "Future[int]") -> None:
        inner: Future[int] = Future()
        threads.start(lambda: inner.set_result(1))
        result.set_result(inner.result(60))

    def all_of(count: int) -> list[int]:
        results: list[Future[int]] = [Future() for _ in range(count)]
        for result in results:
            threads.start(lambda result=result: outer(result))
        return [result.result(60) for result in results]

    assert all_of(6) == [1] * 6
    before = threading.active_count()
    for _ in range(20):
        all_of(3)
    assert threading.active_count() <= before + 2, "spare threads are used again"


def test_a_thread_more_goes_on_with_what_waits_there() -> None:
    threads = BodyThreads(max_threads=1, patience_s=0.01)
    release, parked, go, done = threading.Event(), Future[None](), Future[int](), Future[int]()
    blocked = threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(60)

    def waits() -> None:
        parked.set_result(None)
        done.set_result(wait(go))

    threads.start(block)
    assert blocked.wait(60)
    threads.start(waits)
    parked.result(60)
    go.set_result(3)

    assert done.result(60) == 3
    release.set()


def test_what_a_body_returns_is_called_when_it_is_over() -> None:
    threads, go, seen = BodyThreads(max_threads=1), Future[int](), Future[bool]()
    bodies: list[greenlet] = []

    def body() -> Callable[[], None]:
        bodies.append(getcurrent())
        wait(go)
        return lambda: seen.set_result(bodies[0].dead)

    threads.start(body)
    go.set_result(1)

    assert seen.result(60)


def test_as_many_bodies_block_at_once_as_are_asked_for() -> None:
    threads, together, done = BodyThreads(max_threads=1), threading.Barrier(5), Future[None]()

    def block() -> None:
        together.wait(60)

    def last() -> None:
        together.wait(60)
        done.set_result(None)

    with threads.at_least(5), threads.at_least(2):
        for body in (block, block, block, block, last):
            threads.start(body)
        done.result(60)
    before, go = threading.active_count(), threading.Event()
    for _ in range(9):
        threads.start(lambda: until(go))

    assert threading.active_count() == before, "outside of the block none is added"
    go.set()
