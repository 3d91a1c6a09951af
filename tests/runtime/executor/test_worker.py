"""The loop of a worker: what it sends, when, and how it ends."""

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from runtime.errors import RuntimeFault
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.worker import serve
from runtime.wire.channel import (
    ExecutorChannel,
    ExecutorFault,
    FromWorker,
    Progress,
    SchedulerChannel,
)
from runtime.wire.queue import PeerDied
from runtime.wire.step import (
    JOINT_VERSION,
    Copies,
    Exchange,
    Joint,
    Mask,
    Sample,
    SampleKept,
    ToExecutor,
    UnitTransfer,
)
from tests.runtime.executor.fake_executor import FakeExecutor, fail_at, kept_result, plan, result
from tests.runtime.wire.channels import WAIT_S, channels

EXCHANGE = Exchange(3, [Copies(), Copies()], [UnitTransfer(0, 1, pages=bytes(8))])


@dataclass
class Rig:
    """A scheduler's end, and a worker in a thread."""

    scheduler: SchedulerChannel
    executor: FakeExecutor
    served: "Future[None]"

    def send(self, *messages: ToExecutor) -> None:
        """Send messages to the worker."""
        for message in messages:
            self.scheduler.send(message)

    def receive(self) -> FromWorker:
        """Return the worker's next message."""
        message = self.scheduler.receive(WAIT_S)
        assert message is not None
        return message

    def end(self) -> None:
        """Close the channel; raise what the worker raised."""
        self.scheduler.close()
        self.served.result(WAIT_S)


def _serve(executor: FakeExecutor, channel: ExecutorChannel, rank: int = 0) -> None:
    with contextlib.closing(channel):
        serve(executor, channel, rank=rank)


@contextlib.contextmanager
def rig(executor: FakeExecutor, spin_s: float = 0.0) -> Iterator[Rig]:
    """Run a worker of one rank."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1) as pool,
        channels(folder, spin_s=spin_s) as (scheduler, (worker,)),
        # Before the pool waits for the worker, whatever happens.
        contextlib.closing(scheduler),
    ):
        yield Rig(scheduler, executor, pool.submit(_serve, executor, worker))


def test_results_come_without_being_asked_for() -> None:
    with rig(FakeExecutor()) as worker:
        for step in range(1, 20):
            worker.send(plan(step))
            assert worker.receive() == result(step)
        worker.send(plan(20), plan(21), plan(22), plan(23))
        assert [worker.receive() for _ in range(4)] == [result(step) for step in range(20, 24)]
        worker.end()


def test_a_plan_without_sampling_waits_for_its_command() -> None:
    with rig(FakeExecutor()) as worker:
        worker.send(plan(1, sampled=False))
        assert worker.receive() == Progress(1, halfway=True, forwarded=True)
        command = Sample(1, [Mask(0, b"mask")])
        worker.send(command)
        assert worker.receive() == result(1)
        worker.send(plan(2))
        assert worker.receive() == result(2)
        worker.end()

        assert worker.executor.commands == [plan(1, sampled=False), command, plan(2)]


@pytest.mark.parametrize("spin_s", [0.0, 0.01])
def test_progress_and_messages_pass_while_a_step_is_in_flight(spin_s: float) -> None:
    executor = FakeExecutor(at_once=False)
    with rig(executor, spin_s) as worker:
        worker.send(plan(1))
        assert executor.launched.acquire(timeout=WAIT_S)
        executor.steps[1].is_halfway.set()
        assert worker.receive() == Progress(1, halfway=True, forwarded=False)
        worker.send(SampleKept(7, b""))
        assert worker.receive() == kept_result(7)
        worker.send(plan(2, sampled=False))
        assert executor.launched.acquire(timeout=WAIT_S)
        executor.steps[1].is_forwarded.set()
        assert worker.receive() == result(1)
        worker.send(Sample(2), SampleKept(8, b""))
        assert worker.receive() == kept_result(8)
        executor.steps[2].is_forwarded.set()
        assert worker.receive() == result(2)
        worker.end()


def test_a_third_step_waits_until_the_first_has_ended() -> None:
    executor = FakeExecutor(at_once=False)
    with rig(executor) as worker:
        worker.send(plan(1), plan(2), plan(3))
        for _ in range(2):
            assert executor.launched.acquire(timeout=WAIT_S)
        executor.steps[1].is_forwarded.set()
        assert worker.receive() == result(1)
        assert executor.launched.acquire(timeout=WAIT_S)
        executor.steps[3].is_forwarded.set()
        # Steps run in order, so their results come in order, too.
        assert worker.receive() == Progress(3, halfway=True, forwarded=True)
        executor.steps[2].is_forwarded.set()
        assert [worker.receive(), worker.receive()] == [result(2), result(3)]
        worker.end()


def test_a_failure_of_the_executor_is_sent_and_ends_the_worker() -> None:
    with rig(FakeExecutor(before_launch=fail_at(2))) as worker:
        worker.send(plan(1), plan(2))
        assert worker.receive() == result(1)
        fault = worker.receive()
        assert isinstance(fault, ExecutorFault)
        assert "Traceback" in fault.message
        assert "ArithmeticError: step 2 cannot be computed" in fault.message
        with pytest.raises(ArithmeticError):
            worker.served.result(WAIT_S)
        with pytest.raises(PeerDied, match="rank 0"):
            worker.receive()


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([plan(1), plan(3)], "the plan of step 3 came after step 1"),
        ([plan(1, sampled=False), plan(2)], "step 2 came before the sample command of step 1"),
        ([Sample(1)], "a sample command for step 1, which awaits none"),
        ([plan(1, sampled=False), Sample(2)], "a sample command for step 2"),
        ([plan(1, sampled=False), Sample(1), Sample(1)], "a sample command for step 1"),
    ],
)
def test_messages_out_of_order_are_faults(messages: list[ToExecutor], reason: str) -> None:
    executor = FakeExecutor(at_once=False)
    with rig(executor) as worker:
        worker.send(*messages)
        with pytest.raises(RuntimeFault, match=reason):
            worker.served.result(WAIT_S)
        fault = worker.receive()
        assert isinstance(fault, ExecutorFault)
        assert reason in fault.message


def test_every_rank_runs_the_steps_and_rank_0_answers() -> None:
    executors = [FakeExecutor() for _ in range(3)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(3) as pool,
        channels(folder, ranks=3) as (scheduler, workers),
        contextlib.closing(scheduler),
    ):
        served = [pool.submit(_serve, *both) for both in zip(executors, workers, strict=True)]
        for step in range(1, 4):
            scheduler.send(plan(step))
        assert [scheduler.receive(WAIT_S) for _ in range(3)] == [result(n) for n in range(1, 4)]
        assert scheduler.receive(0) is None
        scheduler.close()
        for one in served:
            one.result(WAIT_S)

    assert [list(executor.steps) for executor in executors] == [[1, 2, 3]] * 3


def test_each_rank_runs_its_section_of_a_step_and_answers_what_it_is_asked() -> None:
    executors = [FakeExecutor() for _ in range(2)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(2) as pool,
        channels(folder, ranks=2, answering=2) as (scheduler, workers),
        contextlib.closing(scheduler),
    ):
        served = [
            pool.submit(_serve, executor, worker, rank)
            for rank, (executor, worker) in enumerate(zip(executors, workers, strict=True))
        ]
        messages: list[ToExecutor] = [
            Joint(JOINT_VERSION, 1, [plan(1), None]),
            Joint(JOINT_VERSION, 2, [plan(2), plan(2, sampled=False)]),
            Sample(2, rank=1),
            SampleKept(5, b"", rank=1),
            Joint(JOINT_VERSION, 3, [None, plan(3)], EXCHANGE),
            Joint(JOINT_VERSION, 4, [None, None]),
        ]
        for message in messages:
            scheduler.send(message)

        assert [scheduler.receive(WAIT_S) for _ in range(2)] == [result(1), result(2)]
        assert [scheduler.receive(WAIT_S, rank=1) for _ in range(4)] == [
            Progress(2, halfway=True, forwarded=True),
            result(2),
            kept_result(5),
            result(3),
        ]
        scheduler.close()
        for one in served:
            one.result(WAIT_S)

    # Each row of `plan` begins a prompt, which no decode step computes.
    tokens = JointTokens((1, 1), decodes=False)
    nothing = JointTokens((1, 1), decodes=True, nothing=True)
    assert executors[0].commands == [
        *(tokens, plan(1), tokens, plan(2)),
        *(tokens, EXCHANGE, nothing),
    ]
    assert executors[1].commands == [
        tokens,
        *(tokens, plan(2, sampled=False), Sample(2, rank=1)),
        SampleKept(5, b"", rank=1),
        *(tokens, EXCHANGE, plan(3), nothing),
    ]
