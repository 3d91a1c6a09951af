"""Steps of several replicas at once: what is sent, who answers, and what ranks compute."""

import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest

from mem_cache.spec import TreeSpec
from runtime.errors import RuntimeFault, WorkerDied
from runtime.executor.interface import JointExecutor
from runtime.executor.joint_executors import LocalJointExecutor, RemoteJointExecutor
from runtime.wire.channel import ExecutorChannel, ExecutorFault, Progress, SchedulerChannel
from runtime.wire.step import JOINT_VERSION, Joint, Sample, SampleKept, StepPlan, StepResult
from tests.runtime.executor.fake_executor import FakeExecutor, kept_result, plan, result
from tests.runtime.wire.channels import WAIT_S, channels
from tests.runtime.wire.queue_processes import child
from tests.testing.network_worker import ROWS, SIZES, local_executor
from tests.testing.plans import entry_tokens
from tests.testing.scheduler_rig import Rig
from tests.testing.tiny_model import CONFIG

NETWORK = "tests.testing.network_worker"
WORLD = 2


@contextlib.contextmanager
def played() -> Iterator[tuple[RemoteJointExecutor, list[ExecutorChannel]]]:
    """An executor, and the ends of workers that a test plays itself."""
    with (
        tempfile.TemporaryDirectory() as folder,
        channels(folder, WORLD, answering=WORLD) as (scheduler, workers),
    ):
        yield RemoteJointExecutor(scheduler, WORLD), workers


@contextlib.contextmanager
def processes(meeting: Path) -> Iterator[RemoteJointExecutor]:
    """An executor of ranks with a network, as processes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as undo:
        scheduler = SchedulerChannel.create(
            ranks=WORLD,
            folder=folder,
            answering=WORLD,
            plans_bytes=1 << 20,
            results_bytes=1 << 20,
        )
        undo.callback(scheduler.close)
        for rank, address in enumerate(scheduler.addresses):
            told = msgspec.json.encode(address).decode()
            undo.enter_context(child(told, rank, WORLD, meeting, module=NETWORK))
        scheduler.accept(WAIT_S)
        yield RemoteJointExecutor(scheduler, WORLD)


def test_a_step_is_one_message_and_each_rank_that_has_a_plan_answers() -> None:
    with played() as (executor, workers):
        first = executor.launch([plan(1), None])
        second = executor.launch([plan(2), plan(2, sampled=False)])
        sent = [Joint(JOINT_VERSION, 1, [plan(1), None])]
        sent.append(Joint(JOINT_VERSION, 2, [plan(2), plan(2, sampled=False)]))
        for worker in workers:
            assert [worker.receive(WAIT_S) for _ in sent] == sent
        assert first[0] is not None
        assert first[1] is None
        assert second[0] is not None
        assert second[1] is not None
        second[1].sample(Sample(2))
        for worker in workers:
            assert worker.receive(WAIT_S) == Sample(2, rank=1)
        workers[1].send(Progress(2, halfway=True, forwarded=False))
        assert second[1].halfway
        assert not second[0].halfway
        workers[1].send(result(2))
        workers[0].send(result(1))

        assert second[1].result() == result(2)
        assert first[0].result() == result(1)
        assert not second[0].forwarded


def test_kept_lines_are_those_of_a_rank() -> None:
    with played() as (executor, workers):
        workers[1].send(kept_result(5))

        assert executor.replicas[1].sample_kept(SampleKept(5, b"")) == kept_result(5)
        for worker in workers:
            assert worker.receive(WAIT_S) == SampleKept(5, b"", rank=1)


def test_a_step_without_plans_is_none() -> None:
    with played() as (executor, (worker, _)):
        assert executor.launch([None, None]) == [None, None]
        assert worker.receive(0) is None


def test_no_more_steps_are_in_flight_than_of_one_executor() -> None:
    with played() as (executor, workers):
        executor.launch([plan(1), None])
        executor.launch([None, plan(2)])
        with pytest.raises(RuntimeFault, match="step 3 is one too many"):
            executor.launch([plan(3), None])
        workers[1].send(result(2))
        executor.launch([plan(3), None])


@pytest.mark.parametrize("plans", [[plan(1), plan(2)], [plan(1)]])
def test_plans_that_are_not_of_one_step_are_refused(plans: list[StepPlan | None]) -> None:
    local: JointExecutor = LocalJointExecutor([FakeExecutor(), FakeExecutor()])
    with played() as (remote, _):
        for executor in (local, remote):
            with pytest.raises(RuntimeFault, match=f"{len(plans)} plans of steps"):
                executor.launch(plans)


def test_the_reason_of_a_rank_is_told_with_its_number() -> None:
    with played() as (executor, workers):
        _, step = executor.launch([plan(1), plan(1)])
        assert step is not None
        workers[1].send(ExecutorFault("Traceback: why"))

        with pytest.raises(WorkerDied, match="rank 1 has failed:\nTraceback: why"):
            step.result()


def test_a_rank_that_fails_ends_the_wait_for_another() -> None:
    with played() as (executor, workers):
        first, second = executor.launch([plan(1), plan(1)])
        assert first is not None
        assert second is not None
        workers[1].send(ExecutorFault("Traceback: why"))
        workers[1].close()

        with pytest.raises(WorkerDied, match="the worker of rank 1 has ended"):
            first.result()
        with pytest.raises(WorkerDied, match="rank 1 has failed:\nTraceback: why"):
            second.result()


def numbered(plan: StepPlan | None, step: int) -> StepPlan | None:
    """Return a plan as one of another step."""
    if plan is None:
        return None
    sampling = plan.sampling and msgspec.structs.replace(plan.sampling, step=step)
    return msgspec.structs.replace(plan, step=step, sampling=sampling)


def plans_of(seed: int, requests: int, new: int) -> list[StepPlan]:
    """Return the plans that a scheduler makes for some random requests."""
    draw = random.Random(seed)
    rig = Rig(SIZES, spec=TreeSpec(), rows=ROWS, chunk=64, runner=local_executor(), overlap=False)
    for _ in range(requests):
        prompt = draw.choices(range(CONFIG.vocab_size), k=draw.randint(1, 200))
        rig.send(prompt, new, ignore_eos=True)
    rig.run()
    return [one.plan for one in rig.plans]


def run(
    executor: JointExecutor, plans: Sequence[Sequence[StepPlan]]
) -> Iterator[Sequence[StepResult | None]]:
    """Yield the results of steps in which replicas run plans of their own, until all have."""
    for step, each in enumerate(zip_longest(*plans), 1):
        handles = executor.launch([numbered(one, step) for one in each])
        yield [None if handle is None else handle.result() for handle in handles]


def test_ranks_give_the_tokens_that_a_network_for_each_gives(tmp_path: Path) -> None:
    """Prefill beside decode, ranks that are idle at the end, rows that share nothing."""
    plans = [plans_of(1, requests=3, new=5), plans_of(2, requests=2, new=12)]
    alone = LocalJointExecutor([local_executor() for _ in plans])

    with processes(tmp_path / "meeting") as executor:
        found = [*run(executor, plans)]

    assert len(plans[0]) != len(plans[1])
    for got, want in zip(found, run(alone, plans), strict=True):
        for one, other in zip(got, want, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert entry_tokens(one) == entry_tokens(other)
                assert one.finite == other.finite
