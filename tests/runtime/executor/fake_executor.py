"""An executor without a device: a test says how far its steps are. Also a worker process of it.

A step's result has one token, ten times the step's number; a kept line's is its call's.
"""

import sys
import threading
from collections.abc import Callable

import msgspec

from runtime.executor.joint_tokens import JointTokens
from runtime.executor.worker import serve
from runtime.wire.arrays import INT32, packed
from runtime.wire.channel import ExecutorChannel, RankAddress
from runtime.wire.step import (
    VERSION,
    Copies,
    Exchange,
    KeptResult,
    Rows,
    Sample,
    SampleKept,
    Saves,
    StepPlan,
    StepResult,
    TableChanges,
)

ONE = packed([1], INT32)


def plan(step: int, *, sampled: bool = True) -> StepPlan:
    """Return the plan of one row."""
    rows = Rows(line=packed([0], INT32), start=bytes(8), count=ONE, ids=ONE)
    sampling = Sample(step) if sampled else None
    return StepPlan(
        VERSION, step, TableChanges(), [], Copies(), rows, Saves(), bytes(8), [], sampling
    )


def result(step: int) -> StepResult:
    """Return what a step gives."""
    return StepResult(step, finite=b"\1", accepted=ONE, tokens=packed([10 * step], INT32))


def kept_result(call: int) -> KeptResult:
    """Return what a call gives."""
    return KeptResult(call, accepted=ONE, tokens=packed([10 * call], INT32))


class FakeStep:
    """A step whose progress a test sets."""

    def __init__(self, step: int, commands: list[object]) -> None:
        self.step = step
        self.is_halfway = threading.Event()
        self.is_forwarded = threading.Event()
        self._commands = commands

    @property
    def halfway(self) -> bool:
        """As the test says."""
        return self.is_halfway.is_set()

    @property
    def forwarded(self) -> bool:
        """As the test says."""
        return self.is_forwarded.is_set()

    def sample(self, command: Sample) -> None:
        """Note the command."""
        self._commands.append(command)

    def result(self) -> StepResult:
        """Wait until the test says that it is forwarded."""
        assert self.is_forwarded.wait(60)
        return result(self.step)


class FakeExecutor:
    """Notes what it is asked; as on a CPU, steps are forwarded at once if `at_once`.

    before_launch  called with each plan, to fail or to wait
    """

    def __init__(
        self,
        *,
        at_once: bool = True,
        before_launch: Callable[[StepPlan], None] = lambda plan: None,
    ) -> None:
        self.steps: dict[int, FakeStep] = {}
        self.commands: list[object] = []
        self.launched = threading.Semaphore(0)
        self._at_once = at_once
        self._before_launch = before_launch

    def launch(self, plan: StepPlan) -> FakeStep:
        """Note a step."""
        self._before_launch(plan)
        step = FakeStep(plan.step, self.commands)
        if self._at_once:
            step.is_forwarded.set()
        self.commands.append(plan)
        self.steps[plan.step] = step
        self.launched.release()
        return step

    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> FakeStep | None:
        """Note a step of ranks, and what is known of it."""
        self.commands += [tokens] if exchange is None else [tokens, exchange]
        return None if plan is None else self.launch(plan)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Note a command and answer it."""
        self.commands.append(command)
        return kept_result(command.call)


def fail_at(step: int) -> Callable[[StepPlan], None]:
    """Return what lets the launch of a step fail."""

    def before_launch(plan: StepPlan) -> None:
        if plan.step == step:
            raise ArithmeticError(f"step {step} cannot be computed")

    return before_launch


def wait_at(step: int) -> Callable[[StepPlan], None]:
    """Return what lets a process wait for ever in a step, after printing a line."""

    def before_launch(plan: StepPlan) -> None:
        if plan.step == step:
            print("waiting", flush=True)
            sys.stdin.read()

    return before_launch


def run_worker(address: str, behaviour: str, step: str) -> None:
    """Serve as a worker process until the scheduler closes the channel."""
    before_launch = {"fail": fail_at, "wait": wait_at}[behaviour](int(step))
    channel = ExecutorChannel.attach(msgspec.json.decode(address, type=RankAddress), 60)
    try:
        serve(FakeExecutor(before_launch=before_launch), channel)
    except ArithmeticError:
        sys.exit(1)
    finally:
        channel.close()
    print("ended", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
