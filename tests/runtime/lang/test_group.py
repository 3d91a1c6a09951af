"""Tests of runtime.lang.group."""

import gc

from runtime.errors import Aborted
from runtime.lang.executor import Executor
from runtime.lang.family import Member
from runtime.lang.group import Group
from runtime.lang.sampling import Sampling
from tests.runtime.lang.fake import FakeBackend


def executor() -> Executor:
    return Executor(FakeBackend(), Sampling())


def test_a_group_is_idle_when_no_executor_works() -> None:
    group = Group()
    assert group.idle().done()
    for _ in range(2):
        group.begin_work()
    first, second = group.idle(), group.idle()

    group.end_work()
    assert not first.done()
    group.end_work()

    assert first.done()
    assert second.done()
    assert group.idle().done()


def test_a_failure_is_kept_until_it_is_read() -> None:
    group, executors = Group(), [executor() for _ in range(2)]
    one, two = (Member(each) for each in executors)
    first, second = Aborted("first"), Aborted("second")
    group.add_failure(one, first)
    group.add_failure(two, second)
    group.add_failure(one, second)
    assert group.failure() is first

    group.drop_failure(one, second)
    assert group.failure() is first
    group.drop_failure(one, first)
    assert group.failure() is second
    group.drop_failure(two)
    group.drop_failure(two)
    assert group.failure() is None


def test_an_open_run_keeps_what_nobody_holds() -> None:
    group, mine = Group(), executor()
    assert not group.keeps(mine)
    group.open()
    assert group.keeps(mine)
    gone = executor()
    assert group.keeps(gone)
    del gone
    gc.collect()

    assert group.close() == [mine]
    assert not group.keeps(mine)
    assert group.close() == []
