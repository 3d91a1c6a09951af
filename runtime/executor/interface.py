"""What runs steps, in this process or in another one."""

from typing import Protocol

from runtime.wire.step import KeptResult, Sample, SampleKept, StepPlan, StepResult

__all__ = ["Executor", "StepHandle"]


class StepHandle(Protocol):
    """A launched step."""

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over: from then on, waiting for masks leaves it idle."""
        ...

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step, which begins when this one is over."""
        ...

    def sample(self, command: Sample) -> None:
        """Have the entries sampled. Waits for nothing.

        To be called once, before the next launch, where the plan has no `sampling` of its own.
        """
        ...

    def result(self) -> StepResult:
        """Wait for what a sampled step produced."""
        ...


class Executor(Protocol):
    """Runs steps in the order given, against the pools it owns.

    Neither call waits for the device, so that the next step can be launched, with tokens that the
    host does not know, before `StepHandle.result` waits for them.
    """

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step; sample it, too, where the plan says how."""
        ...

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept, and wait for their tokens."""
        ...
