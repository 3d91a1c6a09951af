"""A command about profiles goes to all ranks, and is answered once all have answered."""

from collections.abc import Callable
from typing import Any

import pytest

from runtime.executor.rank_profiler import RankProfiler, profiler_of
from runtime.executor.remote import RemoteExecutor
from runtime.executor.step_profiler import StepProfiler
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from runtime.wire.step import Profile

FILES = ["/traces/a-rank0", "/traces/a-rank1"]


class Watch:
    """Two ranks that trace nothing by themselves."""

    world = 2

    def __init__(self) -> None:
        self.hear: Callable[[int, Profiled], None] = lambda rank, answer: None
        self._awaits: Callable[[], bool] = lambda: False

    @property
    def tracing(self) -> bool:
        """Whether an answer is missing."""
        return self._awaits()

    def why_lost(self) -> str | None:
        """None is lost."""
        return None

    def listen(self, hear: Callable[[int, Profiled], None], awaits: Callable[[], bool]) -> None:
        """Keep both."""
        self.hear, self._awaits = hear, awaits


class Channel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        """Keep it."""
        self.sent.append(message)


class Bench:
    """A profiler of two ranks, what it sent, and what it said."""

    def __init__(self) -> None:
        self.watch, self.channel = Watch(), Channel()
        self.said: list[Profiled] = []
        channel: Any = self.channel
        runner = RemoteExecutor(channel, self.watch)
        self.profiler = profiler_of(runner, None, say=self.said.append)


def test_the_answer_names_the_files_of_all_ranks() -> None:
    bench = Bench()
    start, stop = StartProfile(5, steps=3), StopProfile(6)

    bench.profiler.start(start)
    bench.profiler.stop(stop)
    assert bench.profiler.busy
    for call in (5, 6):
        for rank in (1, 0):
            assert len(bench.said) == call - 5
            bench.watch.hear(rank, Profiled(call, True, "done", FILES[rank]))

    assert bench.channel.sent == [Profile(start), Profile(stop)]
    assert bench.said == [Profiled(call, True, "done", FILES[0], FILES) for call in (5, 6)]
    assert not bench.profiler.busy
    bench.watch.hear(1, Profiled(6, True, "nobody asks"))
    assert len(bench.said) == 2


@pytest.mark.parametrize(
    ("done", "message"),
    [((True, False), "of 2 ranks 1 did not: no"), ((False, False), "no")],
)
def test_what_one_rank_refuses_is_refused(done: tuple[bool, bool], message: str) -> None:
    bench = Bench()
    bench.profiler.start(StartProfile(5))

    for rank, good in enumerate(done):
        bench.watch.hear(rank, Profiled(5, good, "yes" if good else "no"))

    [told] = bench.said
    assert (told.done, told.message) == (False, message)


def test_where_there_is_one_rank_its_steps_are_traced_here() -> None:
    alone: Any = object()

    assert isinstance(Bench().profiler, RankProfiler)
    assert isinstance(profiler_of(alone, None, say=print), StepProfiler)
