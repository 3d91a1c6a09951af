"""Tests of runtime.lang.family."""

import gc

from runtime.errors import Aborted
from runtime.lang.executor import Executor
from runtime.lang.family import Member
from runtime.lang.sampling import Sampling
from tests.runtime.lang.fake import FakeBackend


def executor() -> Executor:
    return Executor(FakeBackend(), Sampling())


def test_cancelling_marks_all_below_and_returns_the_lowest_first() -> None:
    executors = [executor() for _ in range(4)]
    top, left, right, low = (Member(each) for each in executors)
    left.stand_below(top)
    right.stand_below(top)
    low.stand_below(left)
    right.error = mine = Aborted("before")
    error = Aborted("now")

    cancelled = top.cancel(error)

    assert cancelled[0] == (executors[3], error)
    assert cancelled[-1] == (executors[0], error)
    assert dict(cancelled) == dict(zip(executors, (error, error, mine, error), strict=True))
    assert [member.error for member in (top, left, low, right)] == [error, error, error, mine]


def test_a_member_whose_executor_is_gone_is_passed_over() -> None:
    executors = [executor() for _ in range(3)]
    top, middle, low = (Member(each) for each in executors)
    middle.stand_below(top)
    low.stand_below(middle)
    del executors[1]
    gc.collect()

    assert low.living_parent() is top
    error = Aborted("now")
    assert top.cancel(error) == [(executors[1], error), (executors[0], error)]
    assert low.error is error


def test_an_inherited_failure_is_that_of_the_nearest_one_above() -> None:
    executors = [executor() for _ in range(3)]
    top, middle, low = (Member(each) for each in executors)
    middle.stand_below(top)
    low.stand_below(middle)

    assert low.origin() is low
    low.inherits_error = True
    assert low.origin() is middle
    middle.inherits_error = top.inherits_error = True
    assert low.origin() is top
