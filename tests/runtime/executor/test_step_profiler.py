"""Steps are traced on request, and go on whatever becomes of the trace."""

import gzip
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from mem_cache.spec import TreeSpec
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.step_profiler import SAMPLING, RankStepProfiler, range_name
from runtime.executor.trace_folder import TraceFolder
from runtime.profile_messages import MAX_PROFILE_STEPS, Profiled, StartProfile, StopProfile
from runtime.wire.step import Exchange, KeptResult, Sample, SampleKept, StepPlan, StepResult
from tests.bench.serving.trace import read_trace
from tests.testing.plans import PlannedRow, Plans, sample_kept

DEADLINE_S = 60.0
TOKENS = JointTokens((2, 1), decodes=True)


@dataclass
class Handle:
    """A step that is over."""

    forwarded: bool = True
    halfway: bool = True

    def sample(self, command: Sample) -> None:
        """Add two matrices."""
        torch.add(torch.ones(4, 4), torch.ones(4, 4))

    def result(self) -> StepResult:
        """Return nothing of note."""
        return StepResult(1, b"", b"", b"")


@dataclass
class Runner:
    """Multiplies two matrices a step."""

    launched: int = 0

    def launch(self, plan: StepPlan) -> Handle:
        """Count."""
        self.launched += 1
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))
        return Handle()

    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> Handle | None:
        """Count, and return a step where there is a plan."""
        assert tokens == TOKENS
        handle = self.launch(plan or Plans(TreeSpec()).plan())
        return None if plan is None else handle

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Return nothing of note."""
        return KeptResult(command.call, b"", b"")


@dataclass
class Bench:
    """A profiler of a runner, and what it answered."""

    traces: TraceFolder | None
    said: list[Profiled] = field(default_factory=list[Profiled])
    heard: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.runner = Runner()
        self.profiler = RankStepProfiler(self.runner, self.traces, say=self._hear)

    def _hear(self, answer: Profiled) -> None:
        self.said.append(answer)
        self.heard.set()

    def ask(self, message: StartProfile | StopProfile) -> Profiled:
        """Return the answer to a message."""
        self.heard.clear()
        if isinstance(message, StartProfile):
            self.profiler.start(message)
        else:
            self.profiler.stop(message)
        assert self.heard.wait(DEADLINE_S)
        return self.said[-1]

    def steps(self, count: int, tokens: int = 1) -> None:
        """Launch so many steps of two rows of so many tokens."""
        for _ in range(count):
            self.profiler.launch(plan(tokens))

    def settle(self) -> None:
        """Wait until nothing is being written."""
        for thread in threading.enumerate():
            if thread.name == "trace":
                thread.join(DEADLINE_S)
        assert not self.profiler.busy


def plan(tokens: int) -> StepPlan:
    """Return a step of two rows of so many tokens."""
    return Plans(TreeSpec()).plan(*(PlannedRow(line, 9, [7] * tokens) for line in (0, 1)))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A bench with a folder for traces."""
    return Bench(TraceFolder(str(tmp_path)))


def test_so_many_steps_are_traced_and_the_file_comes_by_itself(bench: Bench) -> None:
    bench.steps(2)
    told = bench.ask(StartProfile(7, steps=3))
    assert bench.profiler.busy
    bench.steps(1, tokens=5)
    bench.steps(9)
    bench.settle()

    assert (told.call_id, told.done) == (7, True)
    trace = read_trace(Path(told.file))
    prefill, decode = "step prefill 2 rows 10 tokens", "step decode 2 rows 2 tokens"
    assert [step.name for step in trace.steps] == [prefill, decode, decode]
    assert (trace.spans, trace.found_by) == ([], "ranges")
    late = bench.ask(StopProfile(8))
    assert not late.done
    assert told.file in late.message
    assert bench.runner.launched == 12


def test_the_sampling_of_each_step_has_a_range_of_its_own(bench: Bench) -> None:
    told = bench.ask(StartProfile(7, steps=3))
    bench.steps(4)
    bench.settle()

    events = json.loads(gzip.decompress(Path(told.file).read_bytes()))["traceEvents"]
    ranges = [e["name"] for e in events if e.get("cat") == "user_annotation"]
    assert [name for name in ranges if name == SAMPLING] == [SAMPLING] * 3
    assert plan(1).sampling is not None


def test_steps_in_which_a_rank_is_idle_are_traced_as_such(bench: Bench) -> None:
    profiler = bench.profiler
    assert profiler.launch_part(plan(1), TOKENS) is not None
    told = bench.ask(StartProfile(7, steps=3))
    handles = [profiler.launch_part(one, TOKENS) for one in (None, plan(1), None, plan(1))]
    bench.settle()

    assert [handle is None for handle in handles] == [True, False, True, False]
    trace = read_trace(Path(told.file))
    idle, decode = "step decode 0 rows 0 tokens", "step decode 2 rows 2 tokens"
    assert [step.name for step in trace.steps] == [idle, decode, idle]


def test_a_profile_runs_until_it_is_stopped(bench: Bench) -> None:
    told = bench.ask(StartProfile(1, folder="a", shapes=True))
    assert f"{MAX_PROFILE_STEPS} steps" in told.message
    again = bench.ask(StartProfile(2))
    bench.steps(2)
    stopped = bench.ask(StopProfile(3))
    bench.steps(1)

    assert not again.done
    assert told.file in again.message
    assert (stopped.done, stopped.file) == (True, told.file)
    assert Path(told.file).parent.name == "a"
    assert len(read_trace(Path(stopped.file)).steps) == 2
    assert not bench.profiler.busy
    assert bench.ask(StartProfile(4)).done
    assert bench.ask(StopProfile(5)).file != told.file


def test_a_profile_that_runs_at_the_end_is_dropped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.profiler.close()
    assert not caplog.records
    told = bench.ask(StartProfile(1, folder="a"))
    bench.steps(2)

    bench.profiler.close()
    bench.steps(1)

    assert not bench.profiler.busy
    assert f"{told.file} is not written" in caplog.text
    assert list(Path(told.file).parent.iterdir()) == []
    again = bench.ask(StartProfile(2, steps=1))
    bench.steps(1)
    bench.settle()
    assert len(read_trace(Path(again.file)).steps) == 1


def test_a_file_that_is_being_written_at_the_end_is_waited_for(bench: Bench) -> None:
    told = bench.ask(StartProfile(1, steps=2))
    bench.steps(2)

    bench.profiler.close()

    assert not bench.profiler.busy
    assert len(read_trace(Path(told.file)).steps) == 2


def test_a_profile_may_begin_later(bench: Bench) -> None:
    bench.steps(2)
    told = bench.ask(StartProfile(1, first_step=4, steps=2))
    bench.steps(5)
    bench.settle()

    assert "steps 4 to 5" in told.message
    assert len(read_trace(Path(told.file)).steps) == 2

    bench.ask(StartProfile(2, first_step=100))
    given_up = bench.ask(StopProfile(3))
    assert (given_up.done, given_up.file) == (True, "")
    assert not bench.profiler.busy


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (StartProfile(1, cpu=False), "no GPU computes here"),
        (StartProfile(1, folder="../elsewhere"), "output_dir cannot be used"),
        (StopProfile(1), "no profile is running"),
    ],
)
def test_what_cannot_be_is_refused(
    bench: Bench, message: StartProfile | StopProfile, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    told = bench.ask(message)

    assert not told.done
    assert words in told.message
    assert not bench.profiler.busy


def test_without_a_folder_nothing_is_traced() -> None:
    bench = Bench(None)

    told = bench.ask(StartProfile(1))

    assert not told.done
    assert "--profile-dir" in told.message
    bench.steps(1)


class Broken:
    """A profiler that fails where it is told to."""

    def __init__(self, at: str) -> None:
        self._at = at

    def __call__(self, **options: Any) -> "Broken":
        """Stand for the class, too."""
        return self

    def start(self) -> None:
        """Fail, or not."""
        self._fail("start")

    def stop(self) -> None:
        """Fail, or not."""
        self._fail("stop")

    def export_chrome_trace(self, path: str) -> None:
        """Fail, or write nothing, which is a failure, too."""
        self._fail("export")

    def _fail(self, where: str) -> None:
        if self._at == where:
            raise RuntimeError(f"broke at {where}")


@pytest.mark.parametrize("at", ["start", "stop", "export", "nowhere"])
def test_a_profiler_that_fails_says_so_and_steps_go_on(
    bench: Bench, at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runtime.executor.step_profiler.profile", Broken(at))

    told = bench.ask(StartProfile(1))
    bench.steps(2)
    if told.done:
        told = bench.ask(StopProfile(2))

    assert not told.done
    assert at in told.message or at == "nowhere"
    assert not bench.profiler.busy
    bench.profiler.start(StartProfile(3, first_step=4, steps=1))
    bench.steps(2)
    bench.settle()
    assert bench.runner.launched == 4
    assert list(tmp_path.iterdir()) == []


def test_a_range_tells_the_phase_and_the_size() -> None:
    assert range_name(plan(5)) == "step prefill 2 rows 10 tokens"
    assert range_name(plan(1)) == "step decode 2 rows 2 tokens"


def test_what_was_kept_is_sampled_whether_or_not_steps_are_traced(bench: Bench) -> None:
    assert bench.profiler.sample_kept(sample_kept(4, call=9)).call == 9
    bench.ask(StartProfile(1))
    assert bench.profiler.sample_kept(sample_kept(4, call=10)).call == 10
    bench.profiler.close()


def test_a_traced_step_is_sampled_and_asked_as_any_other(bench: Bench) -> None:
    for step in range(2):
        if step:
            bench.ask(StartProfile(1))
        handle = bench.profiler.launch(plan(1))
        handle.sample(Sample(step))
        assert (handle.forwarded, handle.halfway, handle.result().step) == (True, True, 1)
    bench.profiler.close()
