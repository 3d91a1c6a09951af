"""Both ends of a channel in one process."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from runtime.wire.channel import ExecutorChannel, SchedulerChannel

# Long enough for any machine; no test waits so long.
WAIT_S = 60.0


@contextlib.contextmanager
def channels(
    folder: str,
    ranks: int = 1,
    *,
    answering: int = 1,
    plans_bytes: int = 1 << 20,
    results_bytes: int = 1 << 20,
    spin_s: float = 0.0,
) -> Iterator[tuple[SchedulerChannel, list[ExecutorChannel]]]:
    """A scheduler's end and one for each rank."""
    scheduler = SchedulerChannel.create(
        ranks=ranks,
        folder=folder,
        answering=answering,
        plans_bytes=plans_bytes,
        results_bytes=results_bytes,
        spin_s=spin_s,
    )
    with contextlib.ExitStack() as ends, ThreadPoolExecutor(ranks) as pool:
        ends.callback(scheduler.close)
        guests = [
            pool.submit(ExecutorChannel.attach, address, WAIT_S, spin_s=spin_s)
            for address in scheduler.addresses
        ]
        scheduler.accept(WAIT_S)
        workers = [guest.result() for guest in guests]
        for worker in workers:
            ends.callback(worker.close)
        yield scheduler, workers
