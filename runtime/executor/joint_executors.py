"""Executors of replicas, which own their rows: in ranks of one network, or one after the other."""

from collections.abc import Sequence

from runtime.errors import RuntimeFault
from runtime.executor.interface import MAX_IN_FLIGHT, Executor, StepHandle
from runtime.executor.remote import RankWatch, RemoteExecutor
from runtime.wire.channel import SchedulerChannel
from runtime.wire.step import JOINT_VERSION, Exchange, Joint, StepPlan

__all__ = ["LocalJointExecutor", "RemoteJointExecutor"]


class LocalJointExecutor:
    """Executors of this process, each with a whole network; a `JointExecutor`.

    They cannot reach each other's pools.
    """

    def __init__(self, executors: Sequence[Executor]) -> None:
        """Take one for each replica."""
        self.replicas = executors

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start the step of each replica that has a plan, one after the other.

        Raises RuntimeFault for an exchange.
        """
        if exchange is not None:
            raise RuntimeFault(f"an exchange in step {exchange.step}, and there are no ranks")
        _step_of(plans, len(self.replicas))
        return [
            None if plan is None else executor.launch(plan)
            for executor, plan in zip(self.replicas, plans, strict=True)
        ]


class RemoteJointExecutor:
    """Ranks that have rows of their own, as worker processes; a `JointExecutor`.

    Belongs to the thread of its channel. Once a worker has failed or died, every call raises
    WorkerDied with the reason.
    """

    def __init__(
        self, channel: SchedulerChannel, world: int, ranks: RankWatch | None = None
    ) -> None:
        """Take a channel on which each of `world` ranks answers.

        ranks  the workers; None: nothing is known of them
        """
        self.replicas = [RemoteExecutor(channel, ranks, rank=rank) for rank in range(world)]

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Send the plans and the exchange in one message.

        Raises RuntimeFault when two steps are in flight already, in any of the ranks.
        """
        step = _step_of(plans, len(self.replicas), exchange)
        if step is None:
            return [None] * len(self.replicas)
        in_flight: set[int] = set()
        for replica in self.replicas:
            replica.take_arrived()
            in_flight |= replica.steps_in_flight
        if len(in_flight) >= MAX_IN_FLIGHT:
            raise RuntimeFault(f"step {step} is one too many: {MAX_IN_FLIGHT} are in flight")
        self.replicas[0].send(Joint(JOINT_VERSION, step, [*plans], exchange))
        return [
            None if plan is None else replica.awaited(plan)
            for replica, plan in zip(self.replicas, plans, strict=True)
        ]


def _step_of(
    plans: Sequence[StepPlan | None], world: int, exchange: Exchange | None = None
) -> int | None:
    """Return the number of a step, None where there is nothing to do.

    Raises RuntimeFault for plans of several steps, or not as many as there are replicas.
    """
    steps = sorted({part.step for part in (*plans, exchange) if part is not None})
    if len(plans) != world or len(steps) > 1:
        raise RuntimeFault(f"{len(plans)} plans of steps {steps} for {world} replicas")
    return steps[0] if steps else None
