"""The loop of a worker process: run the scheduler's plans and send back their results."""

import contextlib
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from runtime.errors import RuntimeFault
from runtime.executor.interface import RankExecutor, StepHandle
from runtime.executor.joint_tokens import JointTokens
from runtime.profile_messages import StartProfile, StopProfile
from runtime.wire.channel import ExecutorChannel, ExecutorFault, Progress
from runtime.wire.queue import PeerClosed, PeerDied
from runtime.wire.step import ALL_RANKS, Joint, Profile, Sample, SampleKept, StepPlan, ToExecutor

__all__ = ["Tracer", "serve"]

# Interval of looking at a step in flight on a host that cannot spare a processor for polling.
_POLL_S = 50e-6
# How long a scheduler that does not read may delay the end of a failed worker.
_FAULT_S = 1.0


class Tracer(Protocol):
    """What traces the steps of this process."""

    def start(self, message: StartProfile) -> None:
        """Begin a profile, or note when to; answer."""
        ...

    def stop(self, message: StopProfile) -> None:
        """End the profile; answer once its file is there."""
        ...


def serve(
    executor: RankExecutor,
    channel: ExecutorChannel,
    tracer: Tracer | None = None,
    *,
    rank: int = 0,
) -> None:
    """Run the plans of a channel until the scheduler closes it.

    tracer  takes commands about profiles; None: there must be none
    rank    this worker's

    Results are sent as soon as they are there. Raises what the executor raises, after its
    traceback was sent; PeerDied when the scheduler has died; RuntimeFault for messages out of
    order. The process should end then.
    """
    try:
        _Worker(executor, channel, tracer, rank).run()
    except PeerClosed:
        return
    except PeerDied:
        raise
    except Exception:
        with contextlib.suppress(PeerDied, TimeoutError, ValueError):
            channel.send(ExecutorFault(traceback.format_exc()), _FAULT_S)
        raise


@dataclass(slots=True)
class _InFlight:
    """A launched step; `halfway` and `forwarded` are as they were sent last."""

    step: int
    handle: StepHandle
    sampled: bool
    halfway: bool = False
    forwarded: bool = False


class _Worker:
    """An executor, the end of a channel, and the steps in flight, oldest first."""

    def __init__(
        self, executor: RankExecutor, channel: ExecutorChannel, tracer: Tracer | None, rank: int
    ) -> None:
        self._executor = executor
        self._rank = rank
        self._tracer = tracer
        self._channel = channel
        self._in_flight: deque[_InFlight] = deque()
        self._last_step: int | None = None

    def run(self) -> None:
        """Run until the channel or the executor raises something."""
        while True:
            # A forwarded step that is not sampled waits for its command: then sleep until it comes.
            poll = any(not flight.forwarded for flight in self._in_flight)
            message = self._channel.receive(0 if poll else None)
            if message is not None:
                self._execute(message)
            changed = self._report()
            if poll and message is None and not changed and not self._channel.spins:
                time.sleep(_POLL_S)

    def _execute(self, message: ToExecutor) -> None:
        if isinstance(message, StepPlan):
            self._check_order(message.step)
            self._note(message, self._executor.launch(message))
        elif isinstance(message, Joint):
            self._launch_part(message)
        elif isinstance(message, Profile):
            self._profile(message.command)
        elif message.rank not in (ALL_RANKS, self._rank):
            return
        elif isinstance(message, Sample):
            self._sample(message)
        else:
            self._sample_kept(message)

    def _check_order(self, step: int) -> None:
        if self._last_step is not None and step != self._last_step + 1:
            raise RuntimeFault(f"the plan of step {step} came after step {self._last_step}")
        flight = self._in_flight[-1] if self._in_flight else None
        if flight is not None and not flight.sampled:
            raise RuntimeFault(
                f"the plan of step {step} came before the sample command of step {flight.step}"
            )
        self._last_step = step

    def _launch_part(self, joint: Joint) -> None:
        """Launch this rank's part of a step of all ranks."""
        self._check_order(joint.step)
        plan, tokens = joint.sections[self._rank], JointTokens.of(joint.sections)
        handle = self._executor.launch_part(plan, tokens, joint.exchange)
        if plan is not None and handle is not None:
            self._note(plan, handle)

    def _note(self, plan: StepPlan, handle: StepHandle) -> None:
        self._in_flight.append(_InFlight(plan.step, handle, plan.sampling is not None))

    def _sample(self, command: Sample) -> None:
        flight = self._in_flight[-1] if self._in_flight else None
        if flight is None or flight.step != command.step or flight.sampled:
            raise RuntimeFault(f"a sample command for step {command.step}, which awaits none")
        flight.handle.sample(command)
        flight.sampled = True

    def _sample_kept(self, command: SampleKept) -> None:
        self._channel.send(self._executor.sample_kept(command))

    def _profile(self, command: StartProfile | StopProfile) -> None:
        if self._tracer is None:
            raise RuntimeFault("a command about a profile reached a worker that traces nothing")
        if isinstance(command, StartProfile):
            self._tracer.start(command)
        else:
            self._tracer.stop(command)

    def _report(self) -> bool:
        """Send results and progress that are new; return whether there were any."""
        changed = False
        for flight in tuple(self._in_flight):
            forwarded = flight.handle.forwarded
            if forwarded and flight.sampled and flight is self._in_flight[0]:
                self._finish()
                changed = True
                continue
            halfway = forwarded or flight.handle.halfway
            if (halfway, forwarded) != (flight.halfway, flight.forwarded):
                flight.halfway, flight.forwarded = halfway, forwarded
                self._channel.send(Progress(flight.step, halfway, forwarded))
                changed = True
        return changed

    def _finish(self) -> None:
        """Wait for the result of the oldest step, and send it."""
        result = self._in_flight[0].handle.result()
        self._in_flight.popleft()
        self._channel.send(result)
