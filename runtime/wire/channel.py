"""Typed messages between a scheduler's process and the workers that run its steps.

    scheduler  -- plans queue: StepPlan, Joint, Sample, SampleKept -->  every rank
    scheduler  <-- results queue: results, notices                  --  rank 0

Where ranks have rows of their own, each rank answers, on a results queue of its own. All queues are
made by the scheduler; a worker attaches with the address of its rank.
"""

import contextlib
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from runtime.errors import RuntimeFault
from runtime.wire.loaded import Loaded
from runtime.wire.queue import DEFAULT_BYTES, PeerDied, QueueReader, QueueWriter
from runtime.wire.queue_link import Deadline
from runtime.wire.step import JOINT_VERSION, VERSION, FromExecutor, Joint, StepPlan, ToExecutor

__all__ = [
    "ExecutorChannel",
    "ExecutorFault",
    "FromWorker",
    "Progress",
    "RankAddress",
    "SchedulerChannel",
]

RESULTS_BYTES = 16 << 20
# Interval of looking for a dead rank other than the one whose message is waited for.
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
    """Where the worker of a rank attaches; `results` is empty where it does not answer."""

    plans: str
    results: str = ""


class _PlanHead(msgspec.Struct, array_like=True, tag="plan"):
    """The first field of a plan, in every version."""

    version: int


class _JointHead(msgspec.Struct, array_like=True, tag="joint"):
    """The first field of the plans of all ranks, in every version."""

    version: int


_HEADS: msgspec.msgpack.Decoder[_PlanHead | _JointHead] = msgspec.msgpack.Decoder(
    _PlanHead | _JointHead  # pyright: ignore[reportArgumentType]
)


class SchedulerChannel:
    """The scheduler's end. Belongs to one thread.

    addresses  for each rank
    """

    def __init__(self, plans: QueueWriter, results: Sequence[QueueReader]) -> None:
        """Use `create`."""
        self._plans = plans
        self._results = results
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        ends = [address for queue in results for address in queue.addresses]
        ends += [""] * (len(plans.addresses) - len(ends))
        self.addresses = [RankAddress(*both) for both in zip(plans.addresses, ends, strict=True)]

    @classmethod
    def create(
        cls,
        *,
        ranks: int,
        folder: str,
        answering: int = 1,
        plans_bytes: int = DEFAULT_BYTES,
        results_bytes: int = RESULTS_BYTES,
        spin_s: float = 0.0,
    ) -> "SchedulerChannel":
        """Make all queues.

        ranks      1 to 16
        folder     private directory for sockets, and for memory if /dev/shm is too small
        answering  ranks that send results: the first so many
        spin_s     time that `receive` polls memory before it sleeps
        Raises ValueError for bad numbers, RuntimeFault when there is no room.
        """
        with contextlib.ExitStack() as undo:
            plans = QueueWriter.create(readers=ranks, size=plans_bytes, folder=folder)
            undo.callback(plans.close)
            results: list[QueueReader] = []
            for _ in range(answering):
                queue = QueueReader.create(size=results_bytes, folder=folder, spin_s=spin_s)
                undo.callback(queue.close)
                results.append(queue)
            undo.pop_all()
        return cls(plans, results)

    def accept(self, timeout_s: float | None = None) -> None:
        """Wait until all workers have attached.

        Raises TimeoutError when one has not; it may be called again then.
        """
        deadline = Deadline(timeout_s)
        self._plans.accept(timeout_s)
        for queue in self._results:
            left_ms = deadline.left_ms()
            queue.accept(None if left_ms is None else left_ms / 1000)

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

    def receive(self, timeout_s: float | None = None, *, rank: int = 0) -> FromWorker | None:
        """Return the next message of a rank that answers, or None when none came in time.

        Raises PeerDied when any worker has died, after all messages of the rank are read;
        RuntimeFault for bytes that are no message.
        """
        deadline, results = Deadline(timeout_s), self._results[rank]
        while True:
            left_ms = deadline.left_ms()
            wait_ms = _CHECK_MS if left_ms is None else min(left_ms, _CHECK_MS)
            try:
                data = results.read(wait_ms / 1000)
                if data is None:
                    data = self._check(results)
            except PeerDied as fault:
                raise _of_rank(fault, rank) from fault
            if data is not None:
                return self._decoded(data)
            if left_ms is not None and left_ms <= wait_ms:
                return None

    def _decoded(self, data: bytes) -> FromWorker:
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as fault:
            raise _malformed(data, fault) from fault

    def _check(self, results: QueueReader) -> bytes | None:
        """Raise PeerDied if a rank has died, unless there is a message in `results` by now."""
        try:
            self._plans.check()
        except PeerDied:
            data = results.read(0)
            if data is None:
                raise
            return data
        return None

    def close(self) -> None:
        """Close all queues: workers get PeerClosed once they have read all."""
        self._plans.close()
        for queue in self._results:
            queue.close()


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
        if isinstance(message, StepPlan | Joint):
            _compare_version(message.version, _version_of(isinstance(message, Joint)))
        return message

    def send(self, message: FromWorker, timeout_s: float | None = None) -> None:
        """Send a message if this rank answers; others compute the same and send nothing.

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


def _of_rank(fault: PeerDied, writer: int = 0) -> PeerDied:
    """Return the same error with the worker's rank: that of a reader, or of the one who writes."""
    rank = writer if fault.reader is None else fault.reader
    return type(fault)(f"the worker of rank {rank} has ended: {fault}", rank)


def _malformed(data: bytes, fault: msgspec.DecodeError) -> RuntimeFault:
    return RuntimeFault(f"a malformed message of {len(data)} bytes: {fault}")


def _check_version(data: bytes) -> None:
    """Raise RuntimeFault if a message is a plan of another version."""
    try:
        head = _HEADS.decode(data)
    except msgspec.DecodeError:
        return
    _compare_version(head.version, _version_of(isinstance(head, _JointHead)))


def _version_of(joint: bool) -> int:
    return JOINT_VERSION if joint else VERSION


def _compare_version(version: int, known: int) -> None:
    if version != known:
        raise RuntimeFault(
            f"a step plan of version {version} reached an executor of version {known}: "
            "start scheduler and workers from the same release"
        )
