"""How long one request holds up the others: gaps of a polite stream and of /health beside it.

    python -m tests.end_to_end.stream_gaps [--only NAME ...]

A stream of one token after the other runs beside each of the heaviest requests that are served, or
just refused. It is watched by a process of its own, so that making the heavy one delays nothing
that is measured. `chunk` is a plain prompt of the length of the first: what it takes is the time of
a prefill chunk, which a stream may always wait.
"""

import argparse
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import pairwise
from multiprocessing.connection import Connection

from tests.end_to_end.heavy_requests import ATTACKS
from tests.testing.server_process import ServerProcess, running_server

__all__ = ["FLAGS", "Gaps", "gaps_beside"]

FLAGS = ("--random-seed", "0")
_HEALTH_S = 0.01
_SETTLE_S = 0.5
_REPLY_S = 300.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """What was seen beside one request: the longest waits of others, and what it was told."""

    stream_s: float
    health_s: float
    status: int
    took_s: float


def gaps_beside(server: ServerProcess, name: str) -> Gaps:
    """Send one request beside a stream, and return what that waited for."""
    path, body = ATTACKS[name]()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    watcher = context.Process(target=_watch, args=(server.port, theirs), daemon=True)
    watcher.start()
    try:
        assert ours.recv() == "begun"
        time.sleep(_SETTLE_S)
        begun = time.monotonic()
        status = _post(server.port, path, data)
        took_s = time.monotonic() - begun
        ours.send((begun, begun + took_s))
        stream_s, health_s = ours.recv()
    finally:
        watcher.join(_REPLY_S)
    return Gaps(stream_s, health_s, status, took_s)


def _post(port: int, path: str, data: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=_REPLY_S)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        while reply.read(1 << 20):
            pass
        return reply.status
    finally:
        connection.close()


def _watch(port: int, told: Connection) -> None:
    """Read a stream and ask for health until told the span to report; answer its longest gaps."""
    stop = threading.Event()
    events: list[float] = []
    asked: list[tuple[float, float]] = []
    reader = threading.Thread(target=_read_stream, args=(port, events, stop))
    asker = threading.Thread(target=_ask_health, args=(port, asked, stop))
    for thread in (reader, asker):
        thread.start()
    while len(events) < 3:
        time.sleep(0.01)
    told.send("begun")
    begin, end = told.recv()
    time.sleep(_SETTLE_S)
    stop.set()
    for thread in (reader, asker):
        thread.join(_REPLY_S)
    told.send((_longest(pairwise(events), begin, end), _longest(asked, begin, end)))


def _longest(spans: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Return the length of the longest span that overlaps with [begin, end)."""
    return max((b - a for a, b in spans if b > begin and a < end), default=0.0)


def _read_stream(port: int, events: list[float], stop: threading.Event) -> None:
    body = {
        "text": "Hello",
        "stream": True,
        "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True},
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=_REPLY_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/generate", json.dumps(body), headers)
    reply = connection.getresponse()
    while not stop.is_set() and (line := reply.readline()):
        # Comments keep the connection alive while no token comes.
        if line.startswith(b"data: "):
            events.append(time.monotonic())
    connection.close()


def _ask_health(port: int, asked: list[tuple[float, float]], stop: threading.Event) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=_REPLY_S)
    while not stop.is_set():
        begun = time.monotonic()
        connection.request("GET", "/health")
        connection.getresponse().read()
        asked.append((begun, time.monotonic()))
        time.sleep(_HEALTH_S)
    connection.close()


def main(argv: list[str]) -> int:
    """Print a table of all, or one."""
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.stream_gaps")
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=list(ATTACKS))
    options = parser.parse_args(argv)
    with running_server(*FLAGS, check=False) as server:
        for name in options.only:
            gaps = gaps_beside(server, name)
            print(
                f"{name:20} {gaps.status}  {gaps.took_s:7.2f} s   stream {gaps.stream_s:6.3f} s"
                f"   health {gaps.health_s:6.3f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
