"""The pool: who shares a process, who waits, what is kept, and what a failure costs."""

import itertools
import select
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.grammar.nursery import NurserySettings
from runtime.grammar.output import GrammarOutput
from runtime.grammar.pool import COMPILING_AT_ONCE, GrammarPool, PoolSettings
from runtime.grammar.wire import (
    Accept,
    Channel,
    Close,
    Compile,
    Compiled,
    Failed,
    Mask,
    Open,
    ToGrammar,
)
from runtime.messages import Grammar

SETTINGS = NurserySettings("nowhere", 40, [1, 3])
FIRST, SECOND = np.array([4, 0], dtype="<i4"), np.array([8, 0], dtype="<i4")
A, B, C, D = (Grammar("regex", letter) for letter in "abcd")


class FakeProcess:
    """The other end of a grammar's socket; the test says what the process would."""

    def __init__(self, end: socket.socket) -> None:
        self.channel: Channel[ToGrammar] = Channel(end, ToGrammar)
        self.heard: list[ToGrammar] = []

    def listen(self) -> list[ToGrammar]:
        """Return all that was said so far."""
        while select.select([self.channel], [], [], 0)[0]:
            try:
                self.heard += self.channel.receive()
            except EOFError:
                break
        return self.heard

    @property
    def ended(self) -> bool:
        """Whether the pool has closed the socket."""
        self.listen()
        return self.channel.fileno() < 0 or _closed(self.channel)

    def compiled(self) -> None:
        """Say that the grammar can be served."""
        self.channel.send(Compiled())

    def mask(self, slot: int, words: "np.ndarray[Any, Any]") -> None:
        """Say what an output may go on with."""
        self.channel.send(Mask(slot, words.tobytes()))

    def slots(self) -> list[int]:
        """Return the slots opened so far."""
        return [m.slot for m in self.listen() if isinstance(m, Open)]


def _closed(channel: Channel[ToGrammar]) -> bool:
    try:
        if select.select([channel], [], [], 0)[0]:
            channel.receive()
    except EOFError:
        return True
    return False


class FakeNursery:
    """Hands out sockets; `reason` is why it cannot, `news` makes it readable."""

    def __init__(self, settings: NurserySettings) -> None:
        self.settings = settings
        self.processes: list[FakeProcess] = []
        self.reason: str | None = None
        self.closed = False
        self._ours, self.news = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.processes.append(FakeProcess(theirs))
        return ours

    def failure(self) -> str | None:
        self._ours.recv(1)
        return self.reason

    def close(self) -> None:
        self.closed = True
        self._ours.close()
        self.news.close()


class Rig:
    """A pool on fake processes and a clock that the test turns."""

    def __init__(self, processes: int = 3) -> None:
        self.now_s = 0.0
        self.nurseries: list[FakeNursery] = []
        self.pool = GrammarPool(
            PoolSettings(SETTINGS, processes=processes, limit_s=5.0, memory_bytes=123),
            nursery=self._nursery,
            clock=lambda: self.now_s,
        )
        self._ids = itertools.count(1)

    def _nursery(self, settings: NurserySettings) -> FakeNursery:
        self.nurseries.append(FakeNursery(settings))
        return self.nurseries[-1]

    @property
    def processes(self) -> list[FakeProcess]:
        """All that were ever started."""
        return [process for nursery in self.nurseries for process in nursery.processes]

    def open(self, grammar: Grammar) -> GrammarOutput:
        """Open an output under the next request id."""
        return self.pool.open(next(self._ids), grammar)

    def ready(self, grammar: Grammar) -> GrammarOutput:
        """Open an output and have its process give the first mask."""
        output = self.open(grammar)
        process = self.processes[-1]
        process.compiled()
        process.mask(process.slots()[-1], FIRST)
        assert self.pool.poll() == []
        assert output.allowed is not None
        return output

    def close_all(self) -> None:
        """Close every socket of the test's."""
        self.pool.shut_down()
        for process in self.processes:
            process.channel.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A pool of three places."""
    rig = Rig()
    yield rig
    rig.close_all()


def test_nothing_starts_before_the_first_output(rig: Rig) -> None:
    assert not rig.pool.active
    assert rig.nurseries == []
    assert rig.pool.poll() == []


def test_an_output_is_compiled_opened_and_gets_its_masks(rig: Rig) -> None:
    output = rig.open(A)
    assert output.allowed is None
    assert rig.pool.active

    [process] = rig.processes
    assert process.listen() == [Compile(A, 5.0, 123), Open(1)]
    process.compiled()
    process.mask(1, FIRST)
    rig.pool.poll()
    assert output.allowed is not None
    assert output.allowed.tolist() == FIRST.tolist()

    output.take(7)
    rig.pool.flush()
    assert process.listen()[-1] == Accept(1, 7)
    process.mask(1, SECOND)
    rig.pool.poll()
    assert output.allowed.tolist() == SECOND.tolist()


def test_how_long_each_compilation_took_is_told(rig: Rig) -> None:
    first = rig.open(A)
    rig.now_s += 0.5
    second = rig.open(A)
    rig.now_s += 0.25
    rig.processes[0].compiled()
    rig.pool.poll()
    third = rig.open(A)
    rig.pool.poll()

    told = rig.pool.compilations.told()
    assert (sum(told.counts), told.sum_s) == (1, 0.75)
    assert [output.compile_s for output in (first, second, third)] == [0.75, 0.25, 0.0]


def test_outputs_of_one_text_share_a_process(rig: Rig) -> None:
    one, two = rig.open(A), rig.open(Grammar("regex", "a"))
    other = rig.open(Grammar("ebnf", "a"))
    rig.open(Grammar("regex", "a", calls="{}"))

    assert [process.slots() for process in rig.processes] == [[1, 2], [3], [4]]
    first = rig.processes[0]
    first.compiled()
    first.mask(2, SECOND)
    rig.pool.poll()
    assert [o.allowed is None for o in (one, two, other)] == [True, False, True]


def test_a_grammar_stays_compiled_for_the_next_request(rig: Rig) -> None:
    rig.pool.close(rig.ready(A))
    assert not rig.pool.active

    again = rig.open(A)

    assert len(rig.processes) == 1
    assert rig.processes[0].listen()[-2:] == [Close(1), Open(2)]
    assert again.allowed is None


def test_the_least_recently_used_grammar_makes_room() -> None:
    rig = Rig(processes=2)
    rig.pool.close(rig.ready(A))
    rig.pool.close(rig.ready(B))
    rig.pool.close(rig.open(A))

    rig.open(C)

    assert [process.ended for process in rig.processes] == [False, True, False]
    rig.close_all()


def test_a_grammar_in_use_is_never_thrown_out() -> None:
    rig = Rig(processes=2)
    first, second = rig.ready(A), rig.ready(B)

    third = rig.open(C)
    assert len(rig.processes) == 2
    assert third.allowed is None

    rig.pool.close(first)
    assert [process.ended for process in rig.processes] == [True, False, False]
    assert rig.processes[2].slots() == [3]
    assert second.allowed is not None
    rig.close_all()


def test_only_so_many_compile_at_once() -> None:
    rig = Rig(processes=COMPILING_AT_ONCE + 2)
    for number in range(COMPILING_AT_ONCE + 1):
        rig.open(Grammar("regex", str(number)))
    assert len(rig.processes) == COMPILING_AT_ONCE

    rig.processes[0].compiled()
    rig.pool.poll()

    assert len(rig.processes) == COMPILING_AT_ONCE + 1
    rig.close_all()


def test_a_grammar_that_is_refused_costs_its_own_outputs_only(rig: Rig) -> None:
    fine = rig.ready(A)
    bad, worse = rig.open(B), rig.open(B)

    rig.processes[1].channel.send(Failed("it is wrong"))

    assert rig.pool.poll() == [bad, worse]
    assert (bad.failure, worse.failure) == ("it is wrong", "it is wrong")
    assert rig.processes[1].ended
    assert fine.failure is None
    for output in (bad, worse):
        rig.pool.close(output)
    assert rig.pool.poll() == []


def test_a_process_that_dies_says_what_may_have_happened(rig: Rig) -> None:
    early, late = rig.open(A), rig.ready(B)

    for process in rig.processes:
        process.channel.close()

    assert set(map(id, rig.pool.poll())) | set(map(id, rig.pool.poll())) == {id(early), id(late)}
    assert "compiling the grammar took more than 5 s" in (early.failure or "")
    assert "matching the grammar took more than 5 s" in (late.failure or "")


def test_a_failure_is_remembered_for_a_while(rig: Rig) -> None:
    rig.pool.close(rig.open(A))
    rig.processes[0].channel.send(Failed("it is wrong"))
    rig.pool.poll()

    again = rig.open(A)
    assert rig.pool.active
    assert rig.pool.poll() == [again]
    assert again.failure == "it is wrong"
    assert len(rig.processes) == 1

    rig.now_s += 61.0
    rig.open(A)
    assert len(rig.processes) == 2


def test_a_closed_output_hears_no_more(rig: Rig) -> None:
    output = rig.ready(A)
    output.take(7)

    rig.pool.close(output)
    rig.processes[0].mask(1, SECOND)

    assert rig.pool.poll() == []
    assert output.allowed is None


def test_an_output_in_line_can_be_closed(rig: Rig) -> None:
    kept = [rig.open(A), rig.open(B), rig.open(C)]
    waiting = rig.open(D)

    rig.pool.close(waiting)
    rig.pool.close(kept[0])

    assert len(rig.processes) == len(kept)


def test_a_nursery_that_cannot_start_fails_what_waits_and_is_tried_again(rig: Rig) -> None:
    ready = rig.ready(D)
    outputs = [rig.open(A), rig.open(B), rig.open(C)]  # the last one waits for a place

    rig.nurseries[0].reason = "xgrammar is not there"
    rig.nurseries[0].news.send(b"x")

    failed = rig.pool.poll()
    assert sorted(map(id, failed)) == sorted(map(id, outputs))
    assert {output.failure for output in failed} == {"xgrammar is not there"}
    assert rig.nurseries[0].closed
    assert ready.failure is None

    rig.open(A)
    assert len(rig.nurseries) == 2


def test_a_process_that_never_speaks_is_given_up(rig: Rig) -> None:
    output = rig.open(A)
    assert rig.pool.poll() == []

    rig.now_s += 131.0

    assert rig.pool.poll() == [output]
    assert rig.nurseries[0].closed


def test_free_text_before_a_grammar_may_hold_all_but_end_tokens(rig: Rig) -> None:
    output = rig.ready(Grammar("regex", "a", after=9))

    assert output.allowed is not None
    bits = np.unpackbits(output.allowed.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [i for i in range(40) if i not in (1, 3)]
    assert rig.pool.end_ids == {1, 3}


def test_where_the_output_may_end_before_its_grammar_nothing_is_forbidden(rig: Rig) -> None:
    output = rig.ready(Grammar("regex", "a", after=9, may_end=True))

    assert output.allowed is not None
    bits = np.unpackbits(output.allowed.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == list(range(40))


def test_what_is_barred_is_not_in_the_free_text_and_is_left_to_the_grammar(rig: Rig) -> None:
    barred = rig.ready(Grammar("regex", "a", after=9, barred=12))
    free = rig.ready(Grammar("regex", "a", after=9))

    assert barred.allowed is not None
    bits = np.unpackbits(barred.allowed.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [i for i in range(40) if i not in (1, 3, 12)]
    assert free.allowed is not None
    assert np.unpackbits(free.allowed.view(np.uint8), bitorder="little")[12]
