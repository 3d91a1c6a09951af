"""A live server of the tiny model under damaged bodies, damaged heads, and schemathesis.

Run by `python -m tests.fuzz --only openapi`. Schemathesis is part of the `dev` extra; without it
the first two thirds of the time alone are used.
"""

import importlib.util
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.end_to_end.tiny_model import tiny_model_flags
from tests.fuzz.bodies import BODIES, judge, parts_of
from tests.fuzz.heads import HEADS
from tests.fuzz.target import Target
from tests.soak.memory import MIB, MemoryWatch
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.tokenizer import write_tokenizer

__all__ = ["OPENAPI"]

OPENAPI = "openapi"
# A request that takes longer hangs: the longest answer of this model takes a tenth of it.
REPLY_S = 60
_ROUND = 300
_SOCKET_S = 0.2
_MOST_GROWTH_BYTES = 96 * MIB
_CONTEXT_TOKENS = 2048
_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)


def fuzz(server: ServerProcess, seconds: float, seed: int, keep: Path) -> str:
    """Send inputs until the time is over; return what was done. Raises AssertionError."""
    document = server.get("/openapi.json")
    targets = (
        Target("bodies", BODIES, lambda data: _send(server, document, data)),
        Target("heads", HEADS.inputs, lambda data: _send_raw(server, data)),
    )
    watch = MemoryWatch({str(pid): pid for pid in (server.pid, *server.children())})
    part_s = seconds / (len(targets) + 1)
    told = [_fuzz_for(target, part_s, seed, keep, watch) for target in targets]
    told.append(_schemathesis(server, part_s, seed, watch))
    assert server.client.get("/health_generate").status_code == 200
    for growth in watch.growth():
        assert growth.grown < _MOST_GROWTH_BYTES, f"memory grows: {growth}"
        told.append(f"{growth.grown / MIB:+.1f} MiB")
    return ", ".join(told)


def _fuzz_for(target: Target, seconds: float, seed: int, keep: Path, watch: MemoryWatch) -> str:
    end, inputs, rounds = time.monotonic() + seconds, 0, 0

    def before(data: bytes) -> None:
        nonlocal inputs
        inputs += 1
        keep.write_bytes(data)

    while time.monotonic() < end:
        watch.sample(time.monotonic())
        target.run(_ROUND, seed=seed * 1_000_000 + rounds, before=before)
        rounds += 1
    keep.unlink(missing_ok=True)
    return f"{inputs} {target.name}"


def _send(server: ServerProcess, document: Any, data: bytes) -> None:
    parts = parts_of(data)
    if parts is None:
        return
    path, body = parts
    headers = {"Content-Type": "application/json"}
    reply = server.client.post(path, content=body, headers=headers, timeout=REPLY_S)
    judge(document, path, reply.status_code, reply.headers["content-type"], reply.content)


def _send_raw(server: ServerProcess, data: bytes) -> None:
    """Send bytes that may be no request; whatever is answered, the next client is served."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=REPLY_S) as connection,
        suppress(ConnectionError),
    ):
        connection.sendall(data)
        connection.settimeout(_SOCKET_S)
        with suppress(TimeoutError):
            reply = connection.recv(1 << 16)
            assert not reply or reply.startswith(b"HTTP/1.1 "), reply[:80]
            assert not reply.startswith(b"HTTP/1.1 500"), reply[:200]
    assert server.client.get("/health", timeout=REPLY_S).status_code == 200


def _schemathesis(server: ServerProcess, seconds: float, seed: int, watch: MemoryWatch) -> str:
    """Let schemathesis send what the document allows, and what it does not."""
    if importlib.util.find_spec("schemathesis") is None:
        return "no schemathesis"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
        *("--checks", _CHECKS, "--max-time", str(max(1, round(seconds))), "--seed", str(seed)),
        *("--request-timeout", str(REPLY_S), "--no-color"),
        *("--warnings", "off", "--suppress-health-check", "all"),
        *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds + 300
        )
    watch.sample(time.monotonic())
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    cases = [line.strip() for line in done.stdout.splitlines() if "generated" in line]
    return f"schemathesis: {' '.join(cases)}"


def main(name: str, seconds: str, seed: str, keep: str) -> None:
    """Start a server and fuzz it; print one line."""
    Path(keep).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        flags = tiny_model_flags(Path(folder))
        write_tokenizer(Path(folder), max_tokens=_CONTEXT_TOKENS)
        bounds = ("--context-length", str(_CONTEXT_TOKENS), "--full-pages", "32")
        with running_server(*flags, *bounds) as server:
            told = fuzz(server, float(seconds), int(seed), Path(keep) / name)
    print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
