"""Child processes with ends of queues; each is one function, named on the command line."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from runtime.wire.queue import PeerClosed, QueueReader, QueueWriter
from runtime.wire.queue_memory import QueueMemory

ROOT = Path(__file__).resolve().parents[3]
ATTACH_S = 60.0


@contextlib.contextmanager
def child(
    function: str, *arguments: object, module: str = __name__
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that runs a function of a module; it is dead at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, function, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    """Wait for a line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def summary(messages: Iterator[bytes]) -> str:
    """Return the number of messages and a digest of them and of their sizes."""
    digest, count = hashlib.blake2b(), 0
    for message in messages:
        digest.update(len(message).to_bytes(8, "little"))
        digest.update(message)
        count += 1
    return f"{count} {digest.hexdigest()}"


def received(reader: QueueReader, pauses: Iterator[float]) -> Iterator[bytes]:
    """Yield messages until the writer closes; take a pause before each."""
    while True:
        if pause_s := next(pauses):
            time.sleep(pause_s)
        try:
            message = reader.read()
        except PeerClosed:
            return
        assert message is not None
        yield message


def summarise(address: str, longest_pause_s: str, spin_s: str) -> None:
    """Read to the end at an uneven pace; print the summary."""
    rng = random.Random(address)
    longest_s = float(longest_pause_s)
    pauses = iter(lambda: rng.choice((0.0, 0.0, 0.0, rng.uniform(0, longest_s))), None)
    with contextlib.closing(QueueReader.attach(address, ATTACH_S, spin_s=float(spin_s))) as reader:
        print(summary(received(reader, pauses)))


def stop_after(address: str, count: str) -> None:
    """Read so many messages, print a line, and do nothing any more."""
    reader = QueueReader.attach(address, ATTACH_S)
    for _ in range(int(count)):
        reader.read()
    print("stopped", flush=True)
    sys.stdin.read()


def die_in_a_message(address: str, count: str) -> None:
    """Write so many messages, and be killed in the middle of the next."""
    writer = QueueWriter.attach(address, ATTACH_S)
    for number in range(int(count)):
        writer.write(str(number).encode())

    def put_and_die(self: QueueMemory, position: int, part: memoryview) -> None:
        put(self, position, part[: len(part) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    put, QueueMemory.put = QueueMemory.put, put_and_die
    writer.write(b"never whole")


def echo(address: str, back: str) -> None:
    """Send each message back."""
    reader, writer = QueueReader.attach(address, ATTACH_S), QueueWriter.attach(back, ATTACH_S)
    with contextlib.suppress(PeerClosed):
        while (message := reader.read()) is not None:
            writer.write(message)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
