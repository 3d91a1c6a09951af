"""Typed messages over queues: both directions, large ones, other versions, deaths."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from runtime.errors import RuntimeFault
from runtime.wire.arrays import INT32, packed
from runtime.wire.channel import ExecutorFault, Progress, RankAddress, SchedulerChannel
from runtime.wire.queue import PeerClosed, PeerDied, QueueReader
from runtime.wire.step import JOINT_VERSION, VERSION, Join, LineSampling, Mask, Sample, StepPlan
from tests.runtime.wire.channels import WAIT_S, channels
from tests.runtime.wire.samples import JOINT, KEPT_RESULT, PLAN, RESULT, SAMPLE, SAMPLE_KEPT


def test_every_message_passes_and_all_ranks_read_the_plans(folder: str) -> None:
    with channels(folder, ranks=3) as (scheduler, workers):
        assert [bool(address.results) for address in scheduler.addresses] == [True, False, False]
        sent = [PLAN, JOINT, SAMPLE, SAMPLE_KEPT]
        for message in sent:
            scheduler.send(message)
        for worker in workers:
            assert [worker.receive(WAIT_S) for _ in sent] == sent
            assert worker.receive(0) is None
        told = [RESULT, KEPT_RESULT, Progress(1, True, False), ExecutorFault("why")]
        for message in told:
            for worker in workers:
                worker.send(message)

        assert [scheduler.receive(WAIT_S) for _ in told] == told
        assert scheduler.receive(0) is None
        assert scheduler.receive(0.01) is None


def test_masks_of_128_rows_and_a_prompt_of_a_million_tokens_pass(folder: str) -> None:
    masks = [Mask(line, os.urandom(16 << 10)) for line in range(128)]
    prompt = packed(range(1 << 20), INT32)
    plan = msgspec.structs.replace(
        PLAN,
        joins=[Join(5, LineSampling(1, 1 << 20, prompt=prompt))],
        sampling=Sample(PLAN.step, masks),
    )
    with (
        channels(folder, plans_bytes=8 << 20) as (scheduler, (worker,)),
        ThreadPoolExecutor(1) as pool,
    ):
        received = pool.submit(lambda: [worker.receive(WAIT_S) for _ in range(3)])
        for _ in range(3):
            scheduler.send(plan, WAIT_S)

        assert received.result() == [plan] * 3


def test_a_message_larger_than_the_queue_is_an_error(folder: str) -> None:
    with channels(folder, plans_bytes=1024) as (scheduler, (worker,)):
        with pytest.raises(ValueError, match="bytes in a queue of 1024"):
            scheduler.send(Sample(1, [Mask(0, bytes(2000))]))
        scheduler.send(SAMPLE)
        assert worker.receive(WAIT_S) == SAMPLE


def test_a_full_queue_is_a_timeout(folder: str) -> None:
    with channels(folder, plans_bytes=1024, results_bytes=1024) as (scheduler, (worker,)):
        scheduler.send(Sample(1, [Mask(0, bytes(800))]))
        with pytest.raises(TimeoutError):
            scheduler.send(Sample(1, [Mask(0, bytes(800))]), 0)
        worker.send(ExecutorFault("x" * 800))
        with pytest.raises(TimeoutError):
            worker.send(ExecutorFault("x" * 800), 0)


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode(msgspec.structs.replace(PLAN, version=VERSION + 1)),
        msgspec.msgpack.encode(["plan", VERSION + 1, "with", "other fields"]),
        msgspec.msgpack.encode(msgspec.structs.replace(JOINT, version=JOINT_VERSION + 1)),
        msgspec.msgpack.encode(["joint", JOINT_VERSION + 1, "with", "other fields"]),
    ],
)
def test_plans_of_another_version_are_refused(folder: str, data: bytes) -> None:
    known = JOINT_VERSION if b"joint" in data else VERSION
    with channels(folder) as (scheduler, (worker,)):
        scheduler._plans.write(data)
        with pytest.raises(RuntimeFault, match=f"version {known + 1} .* version {known}:"):
            worker.receive(WAIT_S)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", msgspec.msgpack.encode(RESULT), msgspec.msgpack.encode(["plan", VERSION])],
)
def test_bytes_that_are_no_message_are_a_fault(folder: str, data: bytes) -> None:
    with channels(folder) as (scheduler, (worker,)):
        scheduler._plans.write(data)
        with pytest.raises(RuntimeFault, match=f"a malformed message of {len(data)} bytes"):
            worker.receive(WAIT_S)
        assert worker._results is not None
        worker._results.write(msgspec.msgpack.encode(PLAN))
        with pytest.raises(RuntimeFault, match="a malformed message"):
            scheduler.receive(WAIT_S)


def test_a_worker_that_ends_is_named_by_its_rank(folder: str) -> None:
    with channels(folder, ranks=2) as (scheduler, workers):
        workers[0].send(RESULT)
        workers[1].close()

        assert scheduler.receive(WAIT_S) == RESULT
        for _ in range(2):
            with pytest.raises(PeerClosed, match="the worker of rank 1 has ended") as raised:
                scheduler.receive(WAIT_S)
            assert raised.value.reader == 1
        with pytest.raises(PeerDied, match="the worker of rank 1 has ended"):
            scheduler.send(SAMPLE)
        workers[0].send(KEPT_RESULT)
        assert scheduler.receive(0) == KEPT_RESULT


def test_each_rank_that_answers_has_a_queue_of_its_own(folder: str) -> None:
    with channels(folder, ranks=2, answering=2) as (scheduler, workers):
        workers[1].send(KEPT_RESULT)
        assert scheduler.receive(0) is None
        workers[0].send(RESULT)

        assert scheduler.receive(WAIT_S) == RESULT
        assert scheduler.receive(WAIT_S, rank=1) == KEPT_RESULT
        workers[1].send(RESULT)
        workers[1].close()
        assert scheduler.receive(WAIT_S, rank=1) == RESULT
        for rank in (0, 1):
            with pytest.raises(PeerDied, match="the worker of rank 1 has ended"):
                scheduler.receive(WAIT_S, rank=rank)


def test_ranks_are_looked_at_again_and_again_while_nothing_comes(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.wire.channel._CHECK_MS", 1)
    with channels(folder, ranks=2) as (scheduler, workers):
        looked: list[None] = []

        def check() -> None:
            looked.append(None)
            if len(looked) == 3:
                workers[0].send(RESULT)

        monkeypatch.setattr(scheduler._plans, "check", check)

        assert scheduler.receive(WAIT_S) == RESULT
        assert len(looked) == 3
        assert scheduler.receive(0.005) is None


def test_last_words_come_before_the_death(folder: str) -> None:
    with channels(folder) as (scheduler, (worker,)):
        worker.send(ExecutorFault("why"))
        worker.close()

        with pytest.raises(PeerDied, match="rank 0"):
            scheduler.send(SAMPLE)
        assert scheduler.receive() == ExecutorFault("why")
        with pytest.raises(PeerDied, match="rank 0"):
            scheduler.receive()


def test_words_that_come_while_the_death_is_noticed_are_not_lost(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with channels(folder) as (scheduler, (worker,)):
        check = scheduler._plans.check

        def late_check() -> None:
            worker.send(ExecutorFault("why"))
            worker.close()
            check()

        monkeypatch.setattr(scheduler._plans, "check", late_check)

        assert scheduler.receive(0) == ExecutorFault("why")


def test_a_scheduler_that_ends_is_noticed(folder: str) -> None:
    with channels(folder, ranks=2) as (scheduler, workers):
        scheduler.send(PLAN)
        scheduler.close()
        for worker in workers:
            assert isinstance(worker.receive(), StepPlan)
            with pytest.raises(PeerClosed):
                worker.receive()
        with pytest.raises(PeerDied):
            workers[0].send(RESULT)
        workers[1].send(RESULT)


@pytest.mark.parametrize("spin_s", [0.0, 0.001])
def test_both_ends_poll_for_as_long_and_a_worker_knows_that_it_does(
    folder: str, spin_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.wire.queue._SPINS", True)
    with channels(folder, spin_s=spin_s) as (scheduler, (worker,)):
        assert worker.spins == (spin_s > 0)
        assert [end._spin_s for end in (worker._plans, *scheduler._results)] == [spin_s] * 2


def test_addresses_are_plain(folder: str) -> None:
    scheduler = SchedulerChannel.create(
        ranks=2, folder=folder, plans_bytes=1024, results_bytes=1024
    )
    data = msgspec.json.encode(scheduler.addresses)

    assert msgspec.json.decode(data, type=list[RankAddress]) == scheduler.addresses
    with pytest.raises(TimeoutError, match="no reader 0 has attached"):
        scheduler.accept(0)
    scheduler.close()


def test_a_worker_that_reads_plans_and_does_not_answer_is_a_timeout(folder: str) -> None:
    scheduler = SchedulerChannel.create(
        ranks=1, folder=folder, plans_bytes=1024, results_bytes=1024
    )
    with ThreadPoolExecutor(1) as pool, contextlib.closing(scheduler):
        plans = pool.submit(QueueReader.attach, scheduler.addresses[0].plans, WAIT_S)
        scheduler._plans.accept(WAIT_S)
        with pytest.raises(TimeoutError, match="no writer has attached"):
            scheduler.accept(0)
        plans.result().close()


def test_a_channel_without_room_leaves_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.wire.queue_memory._free_bytes", lambda _: 1 << 16)
    with pytest.raises(RuntimeFault, match="no room for"):
        SchedulerChannel.create(ranks=1, folder=folder, plans_bytes=1024)

    assert not os.listdir(folder)
