"""Traces of running steps: a runner around a runner that records, on request, what its steps do.

A trace is torch's, in Chrome's format: https://ui.perfetto.dev draws it, and
`python -m tests.bench.serving.gaps` reads it. Each launch of a step stands in a range of its own,
and so does its sampling, so that what the device did is known by step: a kernel's correlation id is
that of the call which launched it, and the call lies in the range.

The profiler of torch wants to be started and stopped by one thread, the one that launches steps;
serving waits meanwhile, and at the end for the device. Files are written by a thread of their own.
Where a profile fails, serving goes on without it.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from runtime.executor.interface import Executor, RankExecutor, StepHandle
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.trace_folder import TraceFolder, write_trace
from runtime.profile_messages import MAX_PROFILE_STEPS, Profiled, StartProfile, StopProfile
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Exchange, KeptResult, Sample, SampleKept, StepPlan, StepResult

__all__ = ["SAMPLING", "RankStepProfiler", "StepProfiler", "range_name"]

logger = logging.getLogger("umbra.profiler")

# Seconds that the end of serving waits for a file that is being written.
LAST_FILE_S = 10.0
# The range of the sampling of the step that was launched last.
SAMPLING = "sampling"


def range_name(plan: StepPlan) -> str:
    """Return the name of a step's range in a trace, such as "step decode 64 rows 64 tokens"."""
    rows, tokens = len(unpacked(plan.rows.line, INT32)), len(unpacked(plan.rows.ids, INT32))
    kind = "decode" if rows == tokens else "prefill"
    return f"step {kind} {rows} rows {tokens} tokens"


class _TracedStep:
    """A step whose sampling stands in a range of its own."""

    def __init__(self, handle: StepHandle) -> None:
        self._handle = handle

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        return self._handle.forwarded

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step."""
        return self._handle.halfway

    def sample(self, command: Sample) -> None:
        """Have the entries sampled, in the range."""
        with record_function(SAMPLING):
            self._handle.sample(command)

    def result(self) -> StepResult:
        """Wait for the tokens."""
        return self._handle.result()


def _unsampled(plan: StepPlan) -> StepPlan:
    """Return a plan without its sampling, which has a range of its own."""
    return msgspec.structs.replace(plan, sampling=None)


class _Refused(Exception):
    """Why no profile is started."""


@dataclass(slots=True)
class _Recording:
    """A profile of the steps [first, last], counted from 1; `running` is None before the first."""

    wanted: StartProfile
    activities: list[ProfilerActivity]
    file: Path
    first: int
    last: int
    running: profile | None = None


class StepProfiler:
    """Passes steps on to `runner`, and traces those that it is told to.

    runner  what runs them
    traces  where files go; None: nothing is ever traced
    say     sends an answer; called from any thread
    """

    def __init__(
        self, runner: Executor, traces: TraceFolder | None, *, say: Callable[[Profiled], None]
    ) -> None:
        self.runner = runner
        self._traces = traces
        self._say = say
        self._launched = 0
        self._recording: _Recording | None = None
        self._writing: Path | None = None
        self._last: Path | None = None
        self._writer: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a profile waits for its first step, runs, or is being written."""
        return self._recording is not None or self._writing is not None

    # --- the runner

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step, traced if that is wanted."""
        if not self._traces_next():
            return self.runner.launch(plan)
        with record_function(range_name(plan)):
            step = _TracedStep(self.runner.launch(_unsampled(plan)))
        self._sample(plan, step)
        return step

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self.runner.sample_kept(command)

    def _traces_next(self) -> bool:
        """Count a step; begin what is to begin with it, and return whether it is traced."""
        self._launched += 1
        recording = self._recording
        if recording is None or self._launched < recording.first:
            return False
        if recording.running is None and self._begin(recording) is not None:
            self._recording = None
            return False
        return True

    def _sample(self, plan: StepPlan | None, step: StepHandle | None) -> None:
        """Sample a traced step where its plan says how; end what ends with it."""
        if plan is not None and step is not None and plan.sampling is not None:
            step.sample(plan.sampling)
        recording = self._recording
        if recording is not None and self._launched >= recording.last:
            self._end(recording)

    # --- what an operator asks

    def start(self, message: StartProfile) -> None:
        """Begin a profile, or note when to; answer."""
        try:
            recording = self._prepare(message)
        except _Refused as refusal:
            self._say(Profiled(message.call_id, False, str(refusal)))
            return
        # First: a heartbeat that is sent while the profiler starts tells why the loop stands.
        self._recording = recording
        text = f"steps {recording.first} to {recording.last} will be traced"
        if recording.first == self._launched + 1:
            text = f"tracing, for {recording.last - self._launched} steps at most"
            fault = self._begin(recording)
            if fault is not None:
                self._recording = None
                self._say(Profiled(message.call_id, False, fault))
                return
        self._say(Profiled(message.call_id, True, text, str(recording.file)))

    def stop(self, message: StopProfile) -> None:
        """End the profile that runs, and answer when its file is there; else say why not."""
        recording = self._recording
        if recording is None:
            self._say(Profiled(message.call_id, False, f"no profile is running{self._what_was()}"))
        elif recording.running is None:
            self._recording = None
            text = f"step {recording.first} had not come: nothing was traced"
            self._say(Profiled(message.call_id, True, text))
        else:
            self._end(recording, call_id=message.call_id)

    def close(self) -> None:
        """Drop a profile that still runs: a process that ends with one of torch's crashes.

        A file that is being written is waited for, though not for long.
        """
        if self._writer is not None:
            self._writer.join(LAST_FILE_S)
        recording, self._recording = self._recording, None
        if recording is None or recording.running is None:
            return
        logger.warning("A profile was running: %s is not written", recording.file)
        _fault_of_stopping(recording.running)

    def _what_was(self) -> str:
        if self._writing is not None:
            return f": it has ended, and {self._writing} is being written"
        return "" if self._last is None else f": the last one is in {self._last}"

    def _prepare(self, message: StartProfile) -> _Recording:
        """Return a profile that has not begun. Raises _Refused."""
        if self._traces is None:
            raise _Refused("this server writes no traces: start it with --profile-dir FOLDER")
        if self._recording is not None:
            raise _Refused(f"a profile is running, into {self._recording.file}: stop it first")
        if self._writing is not None:
            raise _Refused(f"{self._writing} is still being written: try again later")
        activities = [ProfilerActivity.CPU] if message.cpu else []
        if message.gpu and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        if not activities:
            raise _Refused("there is nothing to trace: no GPU computes here, ask for the CPU")
        try:
            file = self._traces.new_file(message.folder)
        except (OSError, ValueError) as fault:
            raise _Refused(f"output_dir cannot be used: {fault}") from fault
        first = max(message.first_step, self._launched + 1)
        steps = min(message.steps or MAX_PROFILE_STEPS, MAX_PROFILE_STEPS)
        return _Recording(message, activities, file, first, first + steps - 1)

    # --- torch's profiler: whatever it raises, serving goes on

    def _begin(self, recording: _Recording) -> str | None:
        """Start the profiler; return why it did not."""
        if ProfilerActivity.CUDA in recording.activities:
            # CUPTI must stay: started anew it crashes with CUDA graphs. torch has the same lines.
            os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
            os.environ["TEARDOWN_CUPTI"] = "0"
        try:
            running = profile(
                activities=recording.activities,
                record_shapes=recording.wanted.shapes,
                with_stack=recording.wanted.stacks,
                # There is one cycle; torch warns of losing those before it unless it is told so.
                acc_events=True,
            )
            running.start()
        except Exception as fault:
            logger.exception("the profiler did not start")
            return f"the profiler did not start: {fault}"
        recording.running = running
        logger.info("Tracing steps %d to %d", recording.first, recording.last)
        return None

    def _end(self, recording: _Recording, *, call_id: int | None = None) -> None:
        """Stop the profiler, and have its file written; `call_id` is told how that went."""
        assert recording.running is not None
        self._writing, self._recording = recording.file, None
        fault = _fault_of_stopping(recording.running)
        if fault is not None:
            self._writing = None
            self._tell(call_id, False, f"the profiler did not stop: {fault}")
            return
        export = recording.running.export_chrome_trace
        arguments = (export, recording.file, call_id)
        self._writer = threading.Thread(
            target=self._write, args=arguments, name="trace", daemon=True
        )
        self._writer.start()

    def _write(self, export: Callable[[str], None], file: Path, call_id: int | None) -> None:
        """Write the trace; a thread's main."""
        fault: Exception | None = None
        try:
            write_trace(export, file)
        except Exception as raised:
            logger.exception("the trace was not written")
            fault = raised
        else:
            logger.info("Wrote %s", file)
            self._last = file
        self._writing = None
        if fault is not None:
            self._tell(call_id, False, f"the trace was not written: {fault}")
        else:
            self._tell(call_id, True, "the trace is written", file=str(file))

    def _tell(self, call_id: int | None, done: bool, text: str, *, file: str = "") -> None:
        if call_id is not None:
            self._say(Profiled(call_id, done, text, file))


class RankStepProfiler(StepProfiler):
    """One that passes a rank's part of a step on, too; a `RankExecutor`."""

    def __init__(
        self, runner: RankExecutor, traces: TraceFolder | None, *, say: Callable[[Profiled], None]
    ) -> None:
        super().__init__(runner, traces, say=say)
        self._rank_runner = runner

    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> StepHandle | None:
        """Start this rank's part of a step, traced if that is wanted."""
        if not self._traces_next():
            return self._rank_runner.launch_part(plan, tokens, exchange)
        idle = f"step {'decode' if tokens.decodes else 'prefill'} 0 rows 0 tokens"
        with record_function(idle if plan is None else range_name(plan)):
            part = None if plan is None else _unsampled(plan)
            handle = self._rank_runner.launch_part(part, tokens, exchange)
        step = None if handle is None else _TracedStep(handle)
        self._sample(plan, step)
        return step


def _fault_of_stopping(running: profile) -> Exception | None:
    """Stop a profile; log and return what it raises."""
    try:
        running.stop()
    except Exception as fault:
        logger.exception("the profiler did not stop")
        return fault
    return None
