"""Traces of steps that ranks run: one command to all of them, one answer of all of them.

Each rank traces its own steps, see `runtime.executor.step_profiler`, into a file of its own, and
answers by its line to the scheduler.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from runtime.executor.interface import Executor
from runtime.executor.remote import RankWatch, RemoteExecutor, RemoteStep
from runtime.executor.step_profiler import StepProfiler
from runtime.executor.trace_folder import TraceFolder
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from runtime.wire.step import KeptResult, Profile, SampleKept, StepPlan

__all__ = ["Profiler", "RankProfiler", "profiler_of"]


class Profiler(Executor, Protocol):
    """What stands before a runner and has its steps traced on request."""

    @property
    def runner(self) -> Executor:
        """Return what runs the steps."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a profile waits for its first step, runs, or is being written."""
        ...

    def start(self, message: StartProfile) -> None:
        """Begin a profile, or note when to; answer."""
        ...

    def stop(self, message: StopProfile) -> None:
        """End the profile that runs, and answer when its file is there; else say why not."""
        ...

    def close(self) -> None:
        """Drop a profile that still runs."""
        ...


class RankProfiler:
    """Passes steps on to ranks, and commands about profiles, too.

    say  sends an answer; called from any thread
    """

    def __init__(
        self, runner: RemoteExecutor, ranks: RankWatch, *, say: Callable[[Profiled], None]
    ) -> None:
        self.runner = runner
        self._ranks = ranks
        self._say = say
        self._lock = threading.Lock()
        self._answers: dict[int, dict[int, Profiled]] = {}
        ranks.listen(self._hear, lambda: bool(self._answers))

    @property
    def busy(self) -> bool:
        """Whether a rank traces, or has not answered yet."""
        return self._ranks.tracing

    def launch(self, plan: StepPlan) -> RemoteStep:
        """Start a step."""
        return self.runner.launch(plan)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self.runner.sample_kept(command)

    def start(self, message: StartProfile) -> None:
        """Have all ranks begin a profile; the answer comes when all have answered."""
        self._send(message)

    def stop(self, message: StopProfile) -> None:
        """Have all ranks end their profile; the answer comes when all files are there."""
        self._send(message)

    def close(self) -> None:
        """Ranks drop what runs by themselves."""

    def _send(self, command: StartProfile | StopProfile) -> None:
        with self._lock:
            self._answers[command.call_id] = {}
        self.runner.send(Profile(command))

    def _hear(self, rank: int, answer: Profiled) -> None:
        """Take a rank's answer; say what all say once the last has come."""
        with self._lock:
            heard = self._answers.get(answer.call_id)
            if heard is None:
                return
            heard[rank] = answer
            if len(heard) < self._ranks.world:
                return
            del self._answers[answer.call_id]
        self._say(_merged([heard[number] for number in sorted(heard)]))


def profiler_of(
    runner: Executor, traces: TraceFolder | None, *, say: Callable[[Profiled], None]
) -> Profiler:
    """Return what traces the steps of `runner`, in this process or in its ranks."""
    if isinstance(runner, RemoteExecutor) and runner.ranks is not None:
        return RankProfiler(runner, runner.ranks, say=say)
    return StepProfiler(runner, traces, say=say)


def _merged(answers: list[Profiled]) -> Profiled:
    """Return one answer for those of all ranks: the first that is a refusal, else the first."""
    failed = [rank for rank, answer in enumerate(answers) if not answer.done]
    files = [answer.file for answer in answers if answer.file]
    if not failed:
        first = answers[0]
        return Profiled(first.call_id, True, first.message, first.file, files)
    answer = answers[failed[0]]
    message = answer.message
    if len(failed) < len(answers):
        listed = ", ".join(map(str, failed))
        message = f"of {len(answers)} ranks {listed} did not: {message}"
    return Profiled(answer.call_id, False, message, answer.file, files)
