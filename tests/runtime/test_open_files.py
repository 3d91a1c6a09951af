"""Tests of runtime.open_files; limits are changed in processes of their own."""

import errno
import logging
import resource
import socket
import subprocess
import sys

import pytest

from runtime.open_files import (
    MOST_FILES,
    SPARE_FILES,
    Listener,
    file_limit,
    raise_file_limit,
    warn_of_few_files,
)

RAISED = """
import resource, sys
from runtime.open_files import file_limit, raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
raise_file_limit()
print(file_limit())
"""
# A client is served, two more find no file, and are served once there are files again.
CROWDED = """
import asyncio, os, resource
from runtime.open_files import Listener

async def serve(reader, writer):
    writer.write(await reader.readline())
    writer.close()

async def echo(client):
    await asyncio.get_running_loop().sock_sendall(client, b"hello\\n")
    return await asyncio.get_running_loop().sock_recv(client, 6)

async def main():
    told = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    import socket
    listener = Listener(socket.AF_INET, socket.SOCK_STREAM, 0)
    listener.bind(("127.0.0.1", 0))
    await asyncio.start_server(serve, sock=listener, backlog=2048)
    clients = [socket.socket() for _ in range(3)]
    for client in clients:
        client.setblocking(False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        os.close(taken.pop())
    await loop.sock_connect(clients[0], listener.getsockname())
    first = await echo(clients[0])
    taken.append(os.dup(0))
    asking = []
    for client in clients[1:]:
        await loop.sock_connect(client, listener.getsockname())
        asking.append(asyncio.create_task(echo(client)))
    await asyncio.sleep(1.5)
    print(first, sum(task.done() for task in asking), set(told), len(told))
    for number in taken:
        os.close(number)
    print(await asyncio.gather(*asking))

asyncio.run(main())
"""


def run(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_limit_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)

    assert run(RAISED, str(hard)) == [str(most)]
    assert run(RAISED, "100") == ["100"]


def test_without_such_limits_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)

    raise_file_limit()
    warn_of_few_files(1 << 40)

    assert file_limit() is None
    assert not caplog.records


def test_too_few_files_for_all_clients_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runtime.open_files.file_limit", lambda: 1024)
    with caplog.at_level(logging.WARNING, "umbra.launch"):
        warn_of_few_files(1024 - SPARE_FILES)
        assert not caplog.records

        warn_of_few_files(1088)

    assert "at most 1024 files may be open, fewer than the 1088 clients" in caplog.text


def test_a_lack_of_files_is_told_once_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    now = 10.0
    monkeypatch.setattr("runtime.open_files.time.monotonic", lambda: now)
    with Listener(socket.AF_INET, socket.SOCK_STREAM, 0) as listener, monkeypatch.context() as few:
        few.setattr("socket.socket.accept", full)
        with pytest.raises(OSError, match="Too many"):
            listener.accept()
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                listener.accept()
        now += 1.0
        with pytest.raises(OSError, match="Too many"):
            listener.accept()


def test_clients_that_there_is_no_file_for_are_served_later() -> None:
    crowded, late = run(CROWDED)

    message = "socket.accept() out of system resource"
    assert crowded.startswith(f"b'hello\\n' 0 {{'{message}'}} ")
    assert int(crowded.split()[-1]) <= 3
    assert late == "[b'hello\\n', b'hello\\n']"
