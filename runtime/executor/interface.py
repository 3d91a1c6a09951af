"""What runs steps: the same interface in the scheduler's process and in front of workers."""

from collections.abc import Sequence
from typing import Protocol

from runtime.executor.joint_tokens import JointTokens
from runtime.wire.step import Exchange, KeptResult, Sample, SampleKept, StepPlan, StepResult

__all__ = ["MAX_IN_FLIGHT", "Executor", "JointExecutor", "RankExecutor", "StepHandle"]

# Steps that are launched and have no result yet.
MAX_IN_FLIGHT = 2


class StepHandle(Protocol):
    """A launched step."""

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        ...

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step."""
        ...

    def sample(self, command: Sample) -> None:
        """Sample the step's entries; waits for nothing. Once, only for plans without `sampling`."""
        ...

    def result(self) -> StepResult:
        """Wait for the result and return it."""
        ...


class Executor(Protocol):
    """Runs steps in the order of their launch; at most two are in flight."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step, and sample its entries, too, if the plan has `sampling`."""
        ...

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept; waits for the result."""
        ...


class RankExecutor(Executor, Protocol):
    """The executor of a rank in a process of its own."""

    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> StepHandle | None:
        """Start this rank's part of a step of ranks that have rows of their own.

        plan      of this rank's rows; None: it takes part without any, and there is no handle
        tokens    of all ranks; all must start the same step
        exchange  of all ranks, made before
        """
        ...


class JointExecutor(Protocol):
    """Runs steps of several replicas at once; see `Executor`.

    Replicas own their rows and pools, and meet inside a step. Each step is launched for all of
    them, and has one number for all.
    """

    @property
    def replicas(self) -> Sequence[Executor]:
        """Return an executor for each replica; `launch` of these is not called."""
        ...

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start a step of all replicas; return a handle for each that has a plan.

        plans     for each replica, of the same step number; None: it has nothing to compute, but
                  takes part
        exchange  what replicas copy from each other before, of the same step
        If there is neither a plan nor an exchange nothing is launched.
        """
        ...
