"""What the loop needs of an executor of several replicas, for one that has no other."""

from collections.abc import Sequence
from typing import Protocol

from runtime.executor.interface import Executor, StepHandle
from runtime.profile_messages import StartProfile, StopProfile
from runtime.wire.step import Exchange, StepPlan

__all__ = ["Profiles", "SoloExecutor"]


class Profiles(Protocol):
    """Traces steps on request; answers by itself."""

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


class SoloExecutor:
    """A `JointExecutor` of one replica."""

    def __init__(self, runner: Executor) -> None:
        self.replicas = [runner]

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start a step; there is nobody to exchange anything with."""
        assert exchange is None
        [plan], [runner] = plans, self.replicas
        return [None if plan is None else runner.launch(plan)]
