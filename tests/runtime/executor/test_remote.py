"""An executor in another process: results by step, and errors instead of hanging."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, cast

import msgspec
import pytest

from runtime.errors import RuntimeFault, WorkerDied
from runtime.executor.interface import Executor, StepHandle
from runtime.executor.remote import RemoteExecutor
from runtime.wire.channel import ExecutorChannel, ExecutorFault, Progress, SchedulerChannel
from runtime.wire.step import Sample, SampleKept
from tests.runtime.executor.fake_executor import kept_result, plan, result
from tests.runtime.wire.channels import WAIT_S, channels
from tests.runtime.wire.queue_processes import child, line

Process: TypeAlias = "subprocess.Popen[str]"
FAKE = "tests.runtime.executor.fake_executor"


@contextlib.contextmanager
def rig(ranks: int = 1) -> Iterator[tuple[RemoteExecutor, list[ExecutorChannel]]]:
    """An executor, and the ends of workers that a test plays itself."""
    with (
        tempfile.TemporaryDirectory() as folder,
        channels(folder, ranks) as (scheduler, workers),
    ):
        yield RemoteExecutor(scheduler), workers


@contextlib.contextmanager
def processes(
    behaviour: str, step: int, ranks: int = 1
) -> Iterator[tuple[RemoteExecutor, list[Process]]]:
    """An executor of real worker processes, and these; the last rank behaves so at `step`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as undo:
        scheduler = SchedulerChannel.create(
            ranks=ranks, folder=folder, plans_bytes=1 << 16, results_bytes=1 << 16
        )
        undo.callback(scheduler.close)
        workers: list[Process] = []
        for rank, address in enumerate(scheduler.addresses):
            told = msgspec.json.encode(address).decode()
            how = behaviour if rank == ranks - 1 else "fail"
            at = step if rank == ranks - 1 else 0
            workers.append(undo.enter_context(child("run_worker", told, how, at, module=FAKE)))
        scheduler.accept(WAIT_S)
        yield RemoteExecutor(scheduler), workers


def test_results_come_by_step_even_if_asked_for_late() -> None:
    with rig() as (executor, (worker,)):
        first, second = executor.launch(plan(1)), executor.launch(plan(2))
        assert [worker.receive(0), worker.receive(0)] == [plan(1), plan(2)]
        worker.send(result(1))
        worker.send(result(2))

        assert second.result() == result(2)
        assert first.result() == first.result() == result(1)
        third = executor.launch(plan(3))
        worker.send(result(3))
        assert third.forwarded
        assert third.halfway
        assert third.result() == result(3)


def test_progress_is_seen_without_waiting() -> None:
    with rig() as (executor, (worker,)):
        first, second = executor.launch(plan(1)), executor.launch(plan(2, sampled=False))
        assert not first.halfway
        worker.send(Progress(1, halfway=True, forwarded=False))
        assert not first.forwarded
        assert first.halfway
        worker.send(Progress(2, halfway=True, forwarded=True))
        assert second.forwarded
        assert second.halfway
        assert not first.forwarded
        worker.send(result(1))
        assert first.forwarded


def test_commands_are_sent_and_calls_answered_among_results() -> None:
    with rig() as (executor, (worker,)), ThreadPoolExecutor(1) as pool:
        step = executor.launch(plan(1, sampled=False))
        step.sample(Sample(1, keep=b"line"))
        call = pool.submit(executor.sample_kept, SampleKept(5, b"line"))
        expected = [plan(1, sampled=False), Sample(1, keep=b"line"), SampleKept(5, b"line")]
        assert [worker.receive(WAIT_S) for _ in expected] == expected
        worker.send(result(1))
        worker.send(kept_result(5))

        assert call.result() == kept_result(5)
        assert step.result() == result(1)


def test_what_could_only_wait_for_ever_is_an_error() -> None:
    with rig() as (executor, _):
        first = executor.launch(plan(1, sampled=False))
        with pytest.raises(RuntimeFault, match="no sample command and so no result"):
            first.result()
        with pytest.raises(RuntimeFault, match="step 1 awaits no sample command of 2"):
            first.sample(Sample(2))
        first.sample(Sample(1))
        with pytest.raises(RuntimeFault, match="step 1 awaits no sample command of 1"):
            first.sample(Sample(1))
        executor.launch(plan(2))
        with pytest.raises(RuntimeFault, match="step 3 is one too many"):
            executor.launch(plan(3))


def test_a_fault_is_raised_by_every_later_call_but_results_stay() -> None:
    with rig() as (executor, (worker,)):
        first, second = executor.launch(plan(1)), executor.launch(plan(2, sampled=False))
        worker.send(result(1))
        worker.send(ExecutorFault("Traceback: why"))
        for call in (
            lambda: second.forwarded,
            lambda: second.halfway,
            lambda: second.sample(Sample(2)),
            second.result,
            lambda: executor.launch(plan(3)),
            lambda: executor.sample_kept(SampleKept(1, b"")),
        ):
            with pytest.raises(WorkerDied, match="rank 0 has failed:\nTraceback: why"):
                call()
        assert first.result() == result(1)


def test_the_reason_is_told_where_the_death_is_noticed_first() -> None:
    with rig() as (executor, (worker,)):
        step = executor.launch(plan(1, sampled=False))
        worker.send(ExecutorFault("why"))
        worker.close()

        with pytest.raises(WorkerDied, match="rank 0 has failed:\nwhy"):
            step.sample(Sample(1))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (result(9), "something of step 9: none is in flight"),
        (Progress(9, True, True), "something of step 9: none is in flight"),
        (kept_result(9), "answered call 9, not None"),
    ],
)
def test_an_answer_to_nothing_is_an_error(message: object, reason: str) -> None:
    with rig() as (executor, (worker,)):
        step = executor.launch(plan(1))
        worker.send(cast(Progress, message))
        with pytest.raises(WorkerDied, match=reason):
            step.result()


def test_steps_run_in_worker_processes() -> None:
    with processes("fail", 0, ranks=2) as (executor, workers):
        before = executor.launch(plan(1))
        for number in range(2, 50):
            after = executor.launch(plan(number))
            assert before.result() == result(number - 1)
            before = after
        assert executor.sample_kept(SampleKept(3, b"")) == kept_result(3)
        executor._channel.close()

        assert [line(worker) for worker in workers] == ["ended", "ended"]


def test_a_failure_in_a_worker_process_is_told() -> None:
    with processes("fail", 2) as (executor, (worker,)):
        first, second = executor.launch(plan(1)), executor.launch(plan(2))
        assert first.result() == result(1)

        with pytest.raises(WorkerDied, match="ArithmeticError: step 2 cannot be computed"):
            second.result()
        assert worker.wait(WAIT_S) == 1


def test_a_worker_that_is_killed_in_a_step_ends_the_wait_for_it() -> None:
    with processes("wait", 2) as (executor, (worker,)):
        first, second = executor.launch(plan(1)), executor.launch(plan(2))
        assert first.result() == result(1)
        assert line(worker) == "waiting"
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(second.result)
            worker.kill()

            with pytest.raises(WorkerDied, match="the worker of rank 0 has ended"):
                wait.result(WAIT_S)


def test_another_rank_that_is_killed_ends_the_wait_for_rank_0() -> None:
    with processes("wait", 1, ranks=2) as (executor, workers):
        step = executor.launch(plan(1, sampled=False))
        while not step.forwarded:
            executor.take_next()
        assert line(workers[1]) == "waiting"
        workers[1].kill()

        with pytest.raises(WorkerDied, match="the worker of rank 1 has ended"):
            executor.take_next()


def test_both_kinds_of_executor_have_one_interface() -> None:
    with rig() as (executor, _):
        common: Executor = executor
        step: StepHandle = common.launch(plan(1))
        assert not step.forwarded
