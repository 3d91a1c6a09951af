"""The nursery as the scheduler holds it: a child process that forks others."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from runtime.grammar.nursery import ENVIRONMENT, NurserySettings
from runtime.grammar.wire import Channel, Failed, FromGrammar

_GONE = "the process that starts grammars ended"


class Nursery(Protocol):
    """Where grammar processes come from. Readable: it has failed, or can fork."""

    def fileno(self) -> int:
        """Return a descriptor for a selector."""
        ...

    def start(self) -> socket.socket:
        """Return a socket to a new grammar process. Raises OSError when there can be none."""
        ...

    def failure(self) -> str | None:
        """Return why no process can start, or None; to be called when readable."""
        ...

    def close(self) -> None:
        """End it; the processes it started live on."""
        ...


class NurseryProcess:
    """A nursery as a child process (see `runtime.grammar.nursery`)."""

    def __init__(self, settings: NurserySettings) -> None:
        self._control, end = socket.socketpair()
        self._control.setblocking(False)
        self._channel: Channel[FromGrammar] = Channel(self._control, FromGrammar)
        with end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "runtime.grammar.nursery", str(end.fileno())),
                    msgspec.json.encode(settings).decode(),
                ],
                pass_fds=[end.fileno()],
                cwd=Path(__file__).parent.parent.parent,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
            )

    def fileno(self) -> int:
        """Return a descriptor for a selector."""
        return self._control.fileno()

    def start(self) -> socket.socket:
        """Return a socket to a new grammar process. Raises OSError when there can be none."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def failure(self) -> str | None:
        """Return why no process can start, or None; to be called when readable."""
        try:
            for message in self._channel.receive():
                if isinstance(message, Failed):
                    return message.message
        except EOFError:
            return _GONE
        return None

    def close(self) -> None:
        """End it; the processes it started live on."""
        self._control.close()
        self._process.kill()
        self._process.wait()
