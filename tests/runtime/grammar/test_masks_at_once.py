"""Masks that many outputs of one grammar ask for at once: the same ones, made side by side."""

import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.grammar.nursery_process import NurseryProcess
from runtime.grammar.process import GrammarProcess
from runtime.grammar.wire import Accept, Close, Compile, Compiled, FromGrammar, Mask, Open
from runtime.messages import Grammar
from tests.runtime.grammar.test_process import Process, ids_of


@pytest.fixture
def pair(nursery: NurseryProcess) -> Iterator[tuple[Process, Process]]:
    """Two processes that end with the test."""
    pair = Process(nursery), Process(nursery)
    yield pair
    for process in pair:
        process.channel.close()


def masks(process: Process, count: int) -> dict[int, set[int]]:
    """Return the ids that the next answers allow, by slot."""
    got: list[FromGrammar] = []
    while len(got) < count:
        got += process.channel.receive()
    return {mask.slot: ids_of(mask) for mask in got if isinstance(mask, Mask)}


@pytest.mark.parametrize("count", [3, 40])
def test_they_are_those_asked_for_one_by_one(pair: tuple[Process, Process], count: int) -> None:
    alone, process = pair
    grammar = Grammar("regex", "[a-c]{4,9}|[xy][bc]{4,}")
    assert alone.compile(grammar) == process.compile(grammar) == Compiled()

    process.channel.send(*(Open(slot) for slot in range(count)))
    told = masks(process, count)
    assert [alone.allowed(Open(slot)) for slot in range(count)] == [*told.values()]
    for step in range(3):
        tokens = {slot: sorted(told[slot])[(slot + step) % len(told[slot])] for slot in told}
        process.channel.send(*(Accept(slot, token) for slot, token in tokens.items()))
        told = masks(process, count)
        assert [alone.allowed(Accept(*item)) for item in tokens.items()] == [*told.values()]
    assert len({frozenset(allowed) for allowed in told.values()}) > 1


def test_an_output_that_is_closed_at_once_is_not_answered(pair: tuple[Process, Process]) -> None:
    process, _ = pair
    assert process.compile(Grammar("regex", "xy")) == Compiled()

    process.channel.send(Open(1), Open(2), Close(1))

    assert [*masks(process, 1)] == [2]


def test_threads_are_no_memory_of_the_grammar(pair: tuple[Process, Process]) -> None:
    process, _ = pair
    assert process.ask(Compile(Grammar("regex", "[ab]{4}"), 20.0, 1 << 22)) == Compiled()

    process.channel.send(*(Open(slot) for slot in range(40)))

    assert len(masks(process, 40)) == 40


def test_each_of_those_asked_for_at_once_may_take_its_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        tools: Any = SimpleNamespace(vocab_size=32)
        process = GrammarProcess(theirs, tools)
        asked = [Compile(Grammar("regex", "a"), 50.0, 0), Open(1), Open(2)]
        with process._timed([*asked]):
            left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        after_s, _ = signal.getitimer(signal.ITIMER_REAL)

    assert 100 < left_s <= 150
    assert after_s == 0
