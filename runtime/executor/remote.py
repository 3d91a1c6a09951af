"""The scheduler's side of an executor that runs in worker processes."""

from collections.abc import Callable, Set
from typing import Protocol

from msgspec.structs import replace

from runtime.errors import RuntimeFault, WorkerDied
from runtime.executor.interface import MAX_IN_FLIGHT
from runtime.profile_messages import Profiled
from runtime.wire.channel import ExecutorFault, FromWorker, Progress, SchedulerChannel
from runtime.wire.loaded import Loaded
from runtime.wire.queue import PeerDied
from runtime.wire.step import (
    ALL_RANKS,
    KeptResult,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
    ToExecutor,
)

__all__ = ["RankWatch", "RemoteExecutor", "RemoteStep"]


class RankWatch(Protocol):
    """What is known of workers beside the channel."""

    @property
    def world(self) -> int:
        """Return how many there are."""
        ...

    @property
    def tracing(self) -> bool:
        """Whether one of them traces steps, or was asked to and has not answered."""
        ...

    def why_lost(self) -> str | None:
        """Return which worker ended first, and how; None where none did."""
        ...

    def listen(self, hear: Callable[[int, Profiled], None], awaits: Callable[[], bool]) -> None:
        """Have `hear` called with a rank and its answer; `awaits` tells whether one is missing."""
        ...


class RemoteStep:
    """The handle of a step that workers run.

    Everything raises WorkerDied once a worker has failed or died, except `result` when the
    result had arrived before.
    """

    def __init__(self, executor: "RemoteExecutor", step: int, *, sampled: bool) -> None:
        """Use `RemoteExecutor.launch`."""
        self._executor = executor
        self._step = step
        self._sampled = sampled
        self._halfway = False
        self._forwarded = False
        self._result: StepResult | None = None

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        if not self._forwarded:
            self._executor.take_arrived()
        return self._forwarded

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step."""
        if not self._halfway:
            self._executor.take_arrived()
        return self._halfway

    def sample(self, command: Sample) -> None:
        """Have the step's entries sampled. Raises RuntimeFault if they are sampled already."""
        if self._sampled or command.step != self._step:
            raise RuntimeFault(f"step {self._step} awaits no sample command of {command.step}")
        self._sampled = True
        self._executor.send_sample(command)

    def result(self) -> StepResult:
        """Wait for the result. Raises RuntimeFault when nothing has been sampled."""
        if not self._sampled:
            raise RuntimeFault(f"step {self._step} has no sample command and so no result")
        while self._result is None:
            self._executor.take_next()
        return self._result

    def advance(self, *, halfway: bool, forwarded: bool) -> None:
        """Note how far the workers are."""
        self._halfway, self._forwarded = halfway, forwarded

    def complete(self, result: StepResult) -> None:
        """Note the result."""
        self._halfway = self._forwarded = True
        self._result = result


class RemoteExecutor:
    """Sends plans to workers and keeps their results until they are asked for.

    Belongs to the thread of its channel, which its owner closes. Once a worker has failed or
    died, every call raises WorkerDied with the reason.
    """

    def __init__(
        self,
        channel: SchedulerChannel,
        ranks: RankWatch | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        """Take the channel.

        ranks  the workers; None: nothing is known of them
        rank   the one whose rows these are; None: all have the same rows, and rank 0 answers
        """
        self._channel = channel
        self.ranks = ranks
        self._rank = ALL_RANKS if rank is None else rank
        self._in_flight: dict[int, RemoteStep] = {}
        self._call: int | None = None
        self._kept: KeptResult | None = None
        self._failure: str | None = None

    def launch(self, plan: StepPlan) -> RemoteStep:
        """Send a plan. Raises RuntimeFault when two steps are in flight already."""
        self.take_arrived()
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise RuntimeFault(f"step {plan.step} is one too many: {MAX_IN_FLIGHT} are in flight")
        self.send(plan)
        return self.awaited(plan)

    @property
    def steps_in_flight(self) -> Set[int]:
        """The steps whose results have not arrived."""
        return self._in_flight.keys()

    def awaited(self, plan: StepPlan) -> RemoteStep:
        """Return the handle of a step that has been sent."""
        step = RemoteStep(self, plan.step, sampled=plan.sampling is not None)
        self._in_flight[plan.step] = step
        return step

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Have lines sampled whose logits were kept; wait for the result."""
        self._call, self._kept = command.call, None
        self.send(replace(command, rank=self._rank))
        while self._kept is None:
            self.take_next()
        self._call = None
        return self._kept

    def send_sample(self, command: Sample) -> None:
        """Send the sample command of a step."""
        self.send(replace(command, rank=self._rank))

    def send(self, message: ToExecutor) -> None:
        """Send a message to all ranks. Waits while the queue is full."""
        self._check()
        try:
            self._channel.send(message)
        except PeerDied as fault:
            # The rank may have sent the reason.
            self.take_arrived()
            raise self._fail(str(fault)) from fault

    def take_arrived(self) -> None:
        """Take all messages that have arrived; waits for none."""
        while self._take(0):
            pass

    def take_next(self) -> None:
        """Wait for a message and take it."""
        self._take(None)

    def _take(self, timeout_s: float | None) -> bool:
        self._check()
        try:
            message = self._channel.receive(timeout_s, rank=self._answering)
        except PeerDied as fault:
            raise self._fail(str(fault)) from fault
        if message is None:
            return False
        self._note(message)
        return True

    def _note(self, message: FromWorker) -> None:
        if isinstance(message, ExecutorFault):
            rank = self._answering
            raise self._fail(f"the executor of rank {rank} has failed:\n{message.message}")
        if isinstance(message, KeptResult):
            if message.call != self._call:
                raise self._fail(f"a worker answered call {message.call}, not {self._call}")
            self._kept = message
            return
        if isinstance(message, Loaded):
            raise self._fail("a worker has loaded its network again")
        step = self._in_flight.get(message.step)
        if step is None:
            raise self._fail(f"a worker sent something of step {message.step}: none is in flight")
        if isinstance(message, Progress):
            step.advance(halfway=message.halfway, forwarded=message.forwarded)
        else:
            del self._in_flight[message.step]
            step.complete(message)

    @property
    def _answering(self) -> int:
        return max(self._rank, 0)

    def _check(self) -> None:
        if self._failure is not None:
            raise WorkerDied(self._failure)

    def _fail(self, reason: str) -> WorkerDied:
        lost = None if self.ranks is None else self.ranks.why_lost()
        self._failure = lost or reason
        return WorkerDied(self._failure)
