"""Typed messages between a scheduler's process and the workers that run its steps.

    scheduler  -- plans queue: StepPlan, Sample, SampleKept -->  every rank
    scheduler  <-- results queue: results, notices           --  rank 0

Both queues are made by the scheduler; a worker attaches with the address of its rank.
"""

import contextlib
from typing import TypeAlias

import msgspec

from runtime.errors import RuntimeFault
from runtime.wire.loaded import Loaded
from runtime.wire.queue import DEFAULT_BYTES, PeerDied, QueueReader, QueueWriter
from runtime.wire.queue_link import Deadline
from runtime.wire.step import VERSION, FromExecutor, StepPlan, ToExecutor

__all__ = [
    "ExecutorChannel",
    "ExecutorFault",
    "FromWorker",
    "Progress",
    "RankAddress",
    "SchedulerChannel",
]

RESULTS_BYTES = 16 << 20
# Interval of looking for a dead rank other than 0.
_CHECK_MS = 200


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """How far a launched step is."""

    step: int
    halfway: bool
    forwarded: bool


class ExecutorFault(msgspec.Struct, frozen=True, array_like=True, tag="fault"):
    """The executor failed, and its worker ends; `message` is the traceback."""

    message: str


FromWorker: TypeAlias = FromExecutor | Progress | ExecutorFault | Loaded


class RankAddress(msgspec.Struct, frozen=True):
    """Where the worker of a rank attaches; `results` is empty but for rank 0."""

    plans: str
    results: str = ""


class _PlanHead(msgspec.Struct, array_like=True, tag="plan"):
    """The first field of a plan, in every version."""

    version: int


class SchedulerChannel:
    """The scheduler's end. Belongs to one thread.

    addresses  for each rank
    """

    def __init__(self, plans: QueueWriter, results: QueueReader) -> None:
        """Use `create`."""
        self._plans = plans
        self._results = results
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        ends = [*results.addresses, *[""] * (len(plans.addresses) - 1)]
        self.addresses = [RankAddress(*both) for both in zip(plans.addresses, ends, strict=True)]

    @classmethod
    def create(
        cls,
        *,
        ranks: int,
        folder: str,
        plans_bytes: int = DEFAULT_BYTES,
        results_bytes: int = RESULTS_BYTES,
        spin_s: float = 0.0,
    ) -> "SchedulerChannel":
        """Make both queues.

        ranks   1 to 16
        folder  private directory for sockets, and for memory if /dev/shm is too small
        spin_s  time that `receive` polls memory before it sleeps
        Raises ValueError for bad numbers, RuntimeFault when there is no room.
        """
        with contextlib.ExitStack() as undo:
            plans = QueueWriter.create(readers=ranks, size=plans_bytes, folder=folder)
            undo.callback(plans.close)
            results = QueueReader.create(size=results_bytes, folder=folder, spin_s=spin_s)
            undo.pop_all()
        return cls(plans, results)

    def accept(self, timeout_s: float | None = None) -> None:
        """Wait until all workers have attached.

        Raises TimeoutError when one has not; it may be called again then.
        """
        deadline = Deadline(timeout_s)
        self._plans.accept(timeout_s)
        left_ms = deadline.left_ms()
        self._results.accept(None if left_ms is None else left_ms / 1000)

    def send(self, message: ToExecutor, timeout_s: float | None = None) -> None:
        """Send a message to all ranks. Waits while their queue is full.

        Raises PeerDied when a worker has died, TimeoutError when there is no room in time,
        ValueError for a message larger than the queue.
        """
        data = self._encoder.encode(message)
        try:
            self._plans.write(data, timeout_s=timeout_s)
        except PeerDied as fault:
            raise _of_rank(fault) from fault

    def receive(self, timeout_s: float | None = None) -> FromWorker | None:
        """Return the next message of rank 0, or None when none came in time.

        Raises PeerDied when any worker has died, after all messages of rank 0 are read;
        RuntimeFault for bytes that are no message.
        """
        deadline = Deadline(timeout_s)
        while True:
            left_ms = deadline.left_ms()
            wait_ms = _CHECK_MS if left_ms is None else min(left_ms, _CHECK_MS)
            try:
                data = self._results.read(wait_ms / 1000)
                if data is None:
                    data = self._check()
            except PeerDied as fault:
                raise _of_rank(fault) from fault
            if data is not None:
                return self._decoded(data)
            if left_ms is not None and left_ms <= wait_ms:
                return None

    def _decoded(self, data: bytes) -> FromWorker:
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as fault:
            raise _malformed(data, fault) from fault

    def _check(self) -> bytes | None:
        """Raise PeerDied if a rank has died, unless rank 0 has sent something meanwhile."""
        try:
            self._plans.check()
        except PeerDied:
            data = self._results.read(0)
            if data is None:
                raise
            return data
        return None

    def close(self) -> None:
        """Close both queues: workers get PeerClosed once they have read all."""
        self._plans.close()
        self._results.close()


class ExecutorChannel:
    """A worker's end. Belongs to one thread.

    spins  whether the host has processors to spare for polling
    """

    def __init__(self, plans: QueueReader, results: QueueWriter | None, *, spins: bool) -> None:
        """Use `attach`."""
        self._plans = plans
        self._results = results
        self.spins = spins
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToExecutor] = msgspec.msgpack.Decoder(ToExecutor)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]

    @classmethod
    def attach(
        cls, address: RankAddress, timeout_s: float | None = None, *, spin_s: float = 0.0
    ) -> "ExecutorChannel":
        """Attach to the queues of a scheduler. Waits until it accepts.

        spin_s  time that `receive` polls memory before it sleeps
        Raises PeerDied when the scheduler is gone, TimeoutError when it does not accept in time.
        """
        with contextlib.ExitStack() as undo:
            plans = QueueReader.attach(address.plans, timeout_s, spin_s=spin_s)
            undo.callback(plans.close)
            results = QueueWriter.attach(address.results, timeout_s) if address.results else None
            undo.pop_all()
        return cls(plans, results, spins=spin_s > 0)

    def receive(self, timeout_s: float | None = None) -> ToExecutor | None:
        """Return the scheduler's next message, or None when none came in time.

        Raises PeerClosed when the scheduler has closed its end, PeerDied when it has died, each
        after all its messages are read; RuntimeFault for a plan of another version and for bytes
        that are no message.
        """
        data = self._plans.read(timeout_s)
        if data is None:
            return None
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError as fault:
            _check_version(data)
            raise _malformed(data, fault) from fault
        if isinstance(message, StepPlan) and message.version != VERSION:
            _check_version(data)
        return message

    def send(self, message: FromWorker, timeout_s: float | None = None) -> None:
        """Send a message if this is rank 0; other ranks compute the same and send nothing.

        Raises PeerDied when the scheduler has died, TimeoutError when there is no room in time,
        ValueError for a message larger than the queue.
        """
        if self._results is not None:
            self._results.write(self._encoder.encode(message), timeout_s=timeout_s)

    def close(self) -> None:
        """Close this worker's ends."""
        self._plans.close()
        if self._results is not None:
            self._results.close()


def _of_rank(fault: PeerDied) -> PeerDied:
    """Return the same error with the worker's rank; only rank 0 writes results."""
    rank = fault.reader or 0
    return type(fault)(f"the worker of rank {rank} has ended: {fault}", rank)


def _malformed(data: bytes, fault: msgspec.DecodeError) -> RuntimeFault:
    return RuntimeFault(f"a malformed message of {len(data)} bytes: {fault}")


def _check_version(data: bytes) -> None:
    """Raise RuntimeFault if a message is a plan of another version."""
    try:
        version = msgspec.msgpack.decode(data, type=_PlanHead).version
    except msgspec.DecodeError:
        return
    if version != VERSION:
        raise RuntimeFault(
            f"a step plan of version {version} reached an executor of version {VERSION}: "
            "start scheduler and workers from the same release"
        )
