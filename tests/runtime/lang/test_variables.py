"""Tests of runtime.lang.variables."""

import asyncio
from concurrent.futures import Future

import pytest

from runtime.errors import Aborted, BadRequest
from runtime.lang.variables import Value, Variables, all_over, all_values


def kept(value: object) -> "Future[Value]":
    future: Future[Value] = Future()
    future.set_result(Value(value, {"of": value}))
    return future


def test_a_join_gathers_what_children_define_and_the_parent_does_not() -> None:
    parent = Variables()
    parent["old"] = parent["mine"] = kept(0)
    first, second = parent.fork(), parent.fork()
    first["new"], second["new"] = kept(1), kept(2)
    first["mine"], second["only"] = kept(3), kept(4)

    found = parent.gather([first, second])

    assert {name: [p.result().value for p in found[name]] for name in found} == {
        "new": [1, 2],
        "only": [4],
    }
    assert (first.is_inherited("old"), first.is_inherited("mine")) == (True, False)
    assert not first.is_inherited("never")


def test_what_a_join_defined_may_be_defined_by_the_next_but_not_by_inheriting() -> None:
    parent = Variables()
    parent.set_gathered("x", kept([1]))
    child = parent.fork()
    assert parent.gather([child]) == {}
    lower = child.fork()
    lower["x"] = kept(1)
    assert list(child.gather([lower])) == ["x"]
    child["x"] = kept(2)
    assert list(parent.gather([child])) == ["x"]
    grandchild = child.fork()
    grandchild["x"] = kept(3)
    assert child.gather([grandchild]) == {}, "the child has its own"
    parent["x"] = kept("own")
    assert parent.gather([child]) == {}


def test_values_come_as_lists_and_a_wait_is_for_all() -> None:
    value = asyncio.run(all_values([kept(1), kept(2)], None))
    assert value == Value([1, 2], [{"of": 1}, {"of": 2}])

    failed, late = Future[None](), Future[None]()
    failed.set_exception(BadRequest("first"))

    async def scenario() -> None:
        waiting = asyncio.ensure_future(all_over([failed, late], None))
        await asyncio.sleep(0)
        assert not waiting.done()
        late.set_exception(Aborted("second"))
        await waiting

    with pytest.raises(BadRequest, match="first"):
        asyncio.run(scenario())
