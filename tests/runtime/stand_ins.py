"""Main functions of scheduler processes that behave, misbehave and die; spawned by name."""

import os
import signal
import sys
import time

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.ipc import Addresses, SchedulerSocket
from runtime.messages import (
    Generate,
    GetState,
    Output,
    Outputs,
    Ready,
    Refused,
    Shutdown,
    State,
)
from tests.testing.fake_scheduler import READY, counting

HEARTBEAT_S = 0.2
DIE_AT, SILENT_AT, FAIL_AT = 66, 77, 88


def steady(config: ServerConfig, addresses: Addresses) -> None:
    """Serve by counting; the prompt's first token may ask for something else.

    66 dies by SIGKILL, 77 is never answered, 88 raises.
    """
    socket = SchedulerSocket(addresses)
    socket.send(Ready(1024, 300, [256], {"pid": os.getpid(), **READY.info}))
    beat_s = 0.0
    while True:
        if time.monotonic() >= beat_s:
            socket.send(State(0, {}, {}))
            beat_s = time.monotonic() + HEARTBEAT_S
        for message in socket.receive(HEARTBEAT_S / 2):
            match message:
                case Generate():
                    _answer(socket, message)
                case GetState():
                    socket.send(State(message.call_id, {}, {}))
                case Shutdown():
                    socket.close()
                    return
                case _:
                    pass


def _answer(socket: SchedulerSocket, request: Generate) -> None:
    first = request.input_ids[0]
    if first == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    if first == FAIL_AT:
        raise ZeroDivisionError("by request")
    if first == SILENT_AT:
        print("left waiting", file=sys.stderr, flush=True)
        socket.send(Outputs([Output(request.request_id, token_ids=[97], prompt_tokens=1)]))
        return
    for reply in counting(request):
        socket.send(reply)


def queueing(config: ServerConfig, addresses: Addresses) -> None:
    """Let all wait until no more come, then serve by counting; refuse what the queue has not room
    for.
    """
    socket = SchedulerSocket(addresses)
    socket.send(READY)
    waiting: list[Generate] = []
    while True:
        messages = socket.receive(HEARTBEAT_S / 10)
        if not messages:
            socket.send(State(0, {}, {}))
            for request in waiting:
                _answer(socket, request)
            waiting.clear()
        for message in messages:
            match message:
                case Generate() if len(waiting) < config.max_queued_requests:
                    waiting.append(message)
                case Generate():
                    socket.send(Refused(message.request_id, "queue_full", "the queue is full"))
                case Shutdown():
                    socket.close()
                    return
                case _:
                    pass


def stuck_loop(config: ServerConfig, addresses: Addresses) -> None:
    """Send heartbeats that say the loop no longer turns."""
    socket = SchedulerSocket(addresses)
    socket.send(READY)
    started = time.monotonic()
    while True:
        time.sleep(HEARTBEAT_S)
        socket.send(State(0, {}, {}, loop_age_s=time.monotonic() - started))


def unservable(config: ServerConfig, addresses: Addresses) -> None:
    """Refuse the checkpoint."""
    raise ConfigError(f"{config.model_path}: num_hidden_layers is missing")


def fails_at_start(config: ServerConfig, addresses: Addresses) -> None:
    """Fail before being ready."""
    raise MemoryError("no room for 1000 pages")


def exits_at_start(config: ServerConfig, addresses: Addresses) -> None:
    """Leave without a word."""
    sys.exit(7)


def never_ready(config: ServerConfig, addresses: Addresses) -> None:
    """Load for ever."""
    time.sleep(600)
