"""Both pipes, every message of both unions, and bytes that are none."""

import asyncio
import random
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import zmq

from runtime.errors import RuntimeFault
from runtime.ipc import Addresses, ManagerSocket, SchedulerSocket, private_addresses
from runtime.messages import (
    Abort,
    Flush,
    Flushed,
    FromScheduler,
    Generate,
    GetState,
    Logprobs,
    Output,
    Outputs,
    Queued,
    Ready,
    Refused,
    Sampling,
    Shutdown,
    State,
    TokenLogprobs,
    ToScheduler,
    pack_ids,
)
from runtime.packed_logprobs import PackedLogprobs, PromptLogprobs

TO_SCHEDULER: list[ToScheduler] = [
    Generate(
        request_id=1 << 48,
        input_ids=pack_ids([0, 1, 129_279]),
        sampling=Sampling(7, 2**63 - 1, logit_bias={5: -1.5}, stop_token_ids=(1, 2)),
        logprobs=Logprobs(3, 2, (9,)),
        namespace="tenant",
        priority=-1,
        stream=False,
    ),
    Abort([1, 2, 3]),
    Flush(4),
    GetState(5),
    Shutdown(),
]
FROM_SCHEDULER: list[FromScheduler] = [
    Outputs(
        [
            Output(
                1,
                token_ids=[5, 6],
                finish="stop",
                matched_stop=6,
                prompt_tokens=3,
                cached_tokens=2,
                prompt_logprobs=PromptLogprobs(1, 0, (), [PackedLogprobs(0, b"abcd", b"efgh")]),
                logprobs=TokenLogprobs([-1.0], [5], [[(-1.0, 5)]], [[(-9.0, 3)]]),
            ),
            Output(2, error="logits are not finite", finish="error"),
        ]
    ),
    Refused(1, "too_long", "no"),
    Queued(3, 1 << 20),
    Flushed(4, True, "done"),
    State(0, {"requests": 1.0}, {"running": 2.0}, step_age_s=0.5, loop_age_s=0.25),
    Ready(1024, 300, [1], {"pages": 7, "device": "cpu", "ok": True, "share": 0.5}),
]


def test_every_message_for_the_scheduler_arrives_as_it_was_sent() -> None:
    async def send_all(addresses: Addresses) -> None:
        manager = ManagerSocket(addresses)
        for message in TO_SCHEDULER:
            manager.send(message)
        manager.close(linger_s=60.0)

    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        asyncio.run(send_all(addresses))
        received: list[ToScheduler] = []
        while len(received) < len(TO_SCHEDULER):
            batch = scheduler.receive(60.0)
            assert batch, "nothing came for a minute"
            received += batch
        scheduler.close()

    assert received == TO_SCHEDULER


def test_every_message_from_the_scheduler_arrives_as_it_was_sent() -> None:
    async def receive_all(addresses: Addresses) -> list[FromScheduler]:
        manager = ManagerSocket(addresses)
        async with asyncio.timeout(60):
            received = [await manager.receive() for _ in FROM_SCHEDULER]
        manager.close()
        return received

    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        for message in FROM_SCHEDULER:
            scheduler.send(message)  # before anybody listens: it must not be lost
        received = asyncio.run(receive_all(addresses))
        scheduler.close()

    assert received == FROM_SCHEDULER


def test_malformed_bytes_are_dropped_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    good = msgspec.msgpack.encode(Flush(9))
    chance = random.Random(0)
    bad = [b"", b"\xc1", b"\xff" * 10, good[:-1], b"\x91" * 100_000, chance.randbytes(64)]
    bad += [msgspec.msgpack.encode({"type": "Exec", "code": "1"}), b'{"type":"Flush"}']
    bad.append(msgspec.msgpack.encode(Flushed(1, True, "the wrong direction")))
    bad.append(msgspec.msgpack.encode({"type": "Abort", "request_ids": ["a"]}))

    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        context = zmq.Context()
        sender = context.socket(zmq.PUSH)
        sender.connect(addresses.to_scheduler)
        for data in [*bad, good]:
            sender.send(data)
        received: list[ToScheduler] = []
        for _ in range(len(bad) + 1):
            received += scheduler.receive(60.0) if not received else []
        sender.close(linger=0)
        context.term()
        scheduler.close()

    assert received == [Flush(9)]
    assert sum("malformed" in line for line in caplog.messages) == len(bad)


def test_the_manager_drops_malformed_bytes_too(caplog: pytest.LogCaptureFixture) -> None:
    async def receive_two(addresses: Addresses) -> list[FromScheduler]:
        manager = ManagerSocket(addresses)
        async with asyncio.timeout(60):
            messages = [await manager.receive()]
            while len(messages) < 2:
                messages += manager.waiting()
                await asyncio.sleep(0.001)
        manager.close()
        return messages

    with private_addresses() as addresses:
        context = zmq.Context()
        sender = context.socket(zmq.PUSH)
        sender.connect(addresses.from_scheduler)
        sent = [Flushed(1, False, ""), Flushed(2, True, "")]
        for message in sent:
            for data in (b"\xc1", msgspec.msgpack.encode(Flush(1)), b"\x91" * 100_000):
                sender.send(data)
            sender.send(msgspec.msgpack.encode(message))
        received = asyncio.run(receive_two(addresses))
        sender.close(linger=0)
        context.term()

    assert received == sent
    assert sum("malformed" in line for line in caplog.messages) == 6


@pytest.mark.parametrize(("text", "most"), [("", 65), ("x" * 200_000, 3)])
def test_the_manager_takes_what_waits_in_order_and_not_too_much(text: str, most: int) -> None:
    sent = [Flushed(number, True, text) for number in range(200)]

    async def receive_all(addresses: Addresses) -> list[list[FromScheduler]]:
        manager = ManagerSocket(addresses)
        assert manager.waiting() == []
        scheduler = SchedulerSocket(addresses)
        for message in sent:
            scheduler.send(message)
        parts: list[list[FromScheduler]] = []
        async with asyncio.timeout(60):
            while sum(map(len, parts)) < len(sent):
                parts.append([await manager.receive(), *manager.waiting()])
        scheduler.send(Flushed(200, True, ""))
        async with asyncio.timeout(60):
            parts.append([await manager.receive()])
        manager.close()
        scheduler.close()
        return parts

    with private_addresses() as addresses:
        parts = asyncio.run(receive_all(addresses))

    assert [message for part in parts for message in part] == [*sent, Flushed(200, True, "")]
    assert 2 <= max(map(len, parts)) <= most


def test_receive_returns_empty_handed_at_its_timeout() -> None:
    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)

        assert scheduler.receive(0.0) == []
        assert scheduler.receive(0.01) == []

        scheduler.close()


def test_a_prompt_of_a_million_tokens_passes() -> None:
    async def send(addresses: Addresses) -> None:
        manager = ManagerSocket(addresses)
        manager.send(Generate(1, bytes(4_000_000), Sampling(1, 0)))
        manager.close(linger_s=60.0)

    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        asyncio.run(send(addresses))
        (message,) = scheduler.receive(60.0)
        scheduler.close()

    assert isinstance(message, Generate)
    assert len(message.input_ids) == 4_000_000


def test_threads_may_send_at_once() -> None:
    async def receive(addresses: Addresses, count: int) -> list[FromScheduler]:
        manager = ManagerSocket(addresses)
        async with asyncio.timeout(60):
            received = [await manager.receive() for _ in range(count)]
        manager.close()
        return received

    def send(scheduler: SchedulerSocket, sender: int) -> None:
        for number in range(200):
            scheduler.send(Flushed(number, True, str(sender)))

    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        threads = [threading.Thread(target=send, args=(scheduler, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        received = asyncio.run(receive(addresses, 800))
        for thread in threads:
            thread.join()
        scheduler.close()

    for sender in range(4):
        own = [m.call_id for m in received if isinstance(m, Flushed) and m.message == str(sender)]
        assert own == list(range(200))


def test_sending_after_close_is_harmless() -> None:
    with private_addresses() as addresses:
        scheduler = SchedulerSocket(addresses)
        scheduler.close()
        scheduler.send(Flushed(1, True, ""))

        async def close_and_send() -> None:
            manager = ManagerSocket(addresses)
            manager.close()
            manager.send(Flush(1))

        asyncio.run(close_and_send())


def test_what_was_sent_before_a_close_reaches_who_listens_later() -> None:
    managers: list[ManagerSocket] = []

    async def send(addresses: Addresses) -> None:
        manager = ManagerSocket(addresses)
        managers.append(manager)
        manager.send(Flush(7))
        manager.close(linger_s=60.0)

    async def receive(addresses: Addresses) -> FromScheduler:
        manager = ManagerSocket(addresses)
        async with asyncio.timeout(60):
            message = await manager.receive()
        manager.close()
        return message

    with private_addresses() as addresses, ThreadPoolExecutor(2) as pool:
        early = SchedulerSocket(addresses)
        early.send(Flushed(8, True, ""))
        closing = pool.submit(early.close, linger_s=60.0)
        while not early._outbound.closed:
            time.sleep(0.001)
        assert asyncio.run(receive(addresses)) == Flushed(8, True, "")
        closing.result()

        closing = pool.submit(asyncio.run, send(addresses))
        while not (managers and managers[0]._outbound.closed):
            time.sleep(0.001)
        late = SchedulerSocket(addresses)
        assert late.receive(60.0) == [Flush(7)]
        closing.result()
        late.close()


def test_the_directory_is_private_and_goes_away() -> None:
    with private_addresses() as addresses:
        folder = Path(addresses.to_scheduler.removeprefix("ipc://")).parent

        assert addresses.to_scheduler != addresses.from_scheduler
        assert addresses.folder == str(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    assert not folder.exists()


def test_a_long_temporary_directory_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    with private_addresses() as addresses:
        assert len(addresses.from_scheduler.removeprefix("ipc://")) <= 107
        SchedulerSocket(addresses).close()

    assert list(long.iterdir()) == []


def test_a_temporary_directory_is_used_up_to_the_last_byte_that_a_path_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def path_in(place: str) -> str:
        Path(place).mkdir(exist_ok=True)
        monkeypatch.setattr("tempfile.tempdir", place)
        with private_addresses() as addresses:
            return addresses.from_scheduler.removeprefix("ipc://")

    with tempfile.TemporaryDirectory() as root:
        own = len(path_in(root)) - len(root)
        last = f"{root}/".ljust(107 - own, "x")

        assert len(path_in(last)) == 107
        assert path_in(last).startswith(last)
        assert not path_in(last + "x").startswith(last)


def test_a_machine_without_a_temporary_folder_is_told_what_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))

    with pytest.raises(RuntimeFault, match=r"nowhere.*TMPDIR"), private_addresses():
        pass
