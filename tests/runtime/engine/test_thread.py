"""Tests of runtime.engine.thread: an engine's life, seen from whoever waits for something."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.engine import Engine
from runtime.errors import ConfigError, Unavailable, WorkerDied
from tests.runtime.engine.counting import (
    COUNT,
    DEADLINE_S,
    alive,
    checkpoint,
    counting_engine,
    scheduler_of,
)
from tests.runtime.stand_ins import DIE_AT, FAIL_AT, SILENT_AT
from tests.testing.scripts import script_environment


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A running engine that counts."""
    with counting_engine(tmp_path) as engine:
        yield engine


def ask_for_ever(engine: Engine, began: threading.Event) -> Any:
    """Ask what is never answered whole; say when the engine is at it, and return the end.

    What comes after the end is not asked for: an engine may be shut down before this thread does.
    """
    for chunk in engine.generate(input_ids=[SILENT_AT], stream=True):
        began.set()
        if chunk["meta_info"]["finish_reason"] is not None:
            return chunk
    raise AssertionError("it ended without a reason")


def waiting(pool: ThreadPoolExecutor, engine: Engine) -> "Future[Any]":
    """Return what a thread waits for, once it does."""
    began = threading.Event()
    future = pool.submit(ask_for_ever, engine, began)
    assert began.wait(DEADLINE_S)
    return future


@pytest.mark.parametrize(
    ("token", "words"), [(DIE_AT, "killed by SIGKILL"), (FAIL_AT, "ZeroDivisionError: by request")]
)
def test_a_dead_scheduler_fails_every_call_then_and_later(
    engine: Engine, token: int, words: str
) -> None:
    with ThreadPoolExecutor() as pool:
        other = waiting(pool, engine)

        with pytest.raises(Unavailable, match=words):
            engine.generate(input_ids=[token])
        with pytest.raises(Unavailable, match=words):
            other.result(DEADLINE_S)

    with pytest.raises(Unavailable, match=words):
        engine.generate(input_ids=[10])
    with pytest.raises(Unavailable, match=words):
        engine.flush_cache()
    with pytest.raises(Unavailable, match=words):
        asyncio.run(engine.async_generate(input_ids=[10]))


def test_a_stopped_scheduler_is_noticed_and_killed(engine: Engine) -> None:
    pid = scheduler_of(engine)
    os.kill(pid, signal.SIGSTOP)

    with pytest.raises(Unavailable, match="has not been heard of"):
        engine.generate(input_ids=[10])

    assert not alive(pid)


def test_a_shutdown_ends_what_runs_and_refuses_what_comes(engine: Engine) -> None:
    pid = scheduler_of(engine)
    with ThreadPoolExecutor() as pool:
        running = waiting(pool, engine)

        engine.shutdown()

        with pytest.raises(Unavailable, match="shutting down"):
            running.result(DEADLINE_S)
    engine.shutdown()
    assert not alive(pid)
    with pytest.raises(Unavailable, match="shut down"):
        engine.generate(input_ids=[10])
    with pytest.raises(Unavailable, match="shut down"):
        next(engine.generate(input_ids=[10], stream=True))
    with pytest.raises(Unavailable, match="shut down"):
        asyncio.run(engine.async_generate(input_ids=[10]))


def test_a_drain_waits_for_who_reads_slowly(engine: Engine) -> None:
    stream = engine.generate(input_ids=[10], sampling_params=COUNT, stream=True)
    first = next(stream)
    with ThreadPoolExecutor() as pool:
        shutting = pool.submit(engine.shutdown, drain_s=DEADLINE_S)
        with pytest.raises(TimeoutError):
            shutting.result(0.5)

        assert [first, *stream][-1]["output_ids"] == [11, 12, 13]
        shutting.result(DEADLINE_S / 2)


@pytest.mark.parametrize("how", ["left", "forgotten"])
def test_a_drain_does_not_wait_for_a_stream_that_is(engine: Engine, how: str) -> None:
    stream = engine.generate(input_ids=[10], sampling_params=COUNT, stream=True)
    next(stream)
    if how == "left":
        stream.close()
    began_s = time.monotonic()

    engine.shutdown(drain_s=DEADLINE_S if how == "left" else 0.1)

    assert time.monotonic() - began_s < DEADLINE_S / 2


def test_what_a_shutdown_cuts_off_is_told_in_any_loop(engine: Engine) -> None:
    """The stand-in never answers a flush."""

    async def ask() -> None:
        asking = asyncio.create_task(asyncio.to_thread(engine.flush_cache))
        stream = await engine.async_generate(input_ids=[SILENT_AT], stream=True)
        await anext(stream)

        await asyncio.to_thread(engine.shutdown)

        with pytest.raises(Unavailable, match="shut down"):
            await asking
        with pytest.raises(Unavailable, match="shut"):
            await anext(stream)

    asyncio.run(ask())


def test_an_engine_in_another_process_is_unavailable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as forked:
        forked.setattr("runtime.engine.thread.os.getpid", lambda: -1)
        with pytest.raises(Unavailable, match="forked"):
            engine.generate(input_ids=[10])
        engine.shutdown()

    assert engine.generate(input_ids=[10], sampling_params=COUNT)["output_ids"] == [11, 12, 13]


def test_nobody_can_wait_in_the_engines_own_thread(engine: Engine) -> None:
    raised: Future[BaseException | None] = Future()

    def ask() -> None:
        try:
            engine.generate(input_ids=[10])
        except RuntimeError as error:
            raised.set_result(error)

    engine._thread.tell(ask)

    assert "own thread" in str(raised.result(DEADLINE_S))


@pytest.mark.parametrize(
    ("main", "error", "words"),
    [
        ("unservable", ConfigError, "num_hidden_layers is missing"),
        ("fails_at_start", WorkerDied, "exited with code 1: MemoryError: no room"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, main: str, error: type[Exception], words: str
) -> None:
    before = set(threading.enumerate())

    with pytest.raises(error, match=words), counting_engine(tmp_path, main):
        pass

    # The one that loads the tokenizer may still be at it, and is not waited for.
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), thread.name


def test_an_engine_that_nobody_holds_ends(tmp_path: Path) -> None:
    engine = Engine(
        model_path=str(checkpoint(tmp_path)), scheduler_main="tests.runtime.stand_ins:steady"
    )
    pid, thread = scheduler_of(engine), engine._thread._thread
    stream = engine.generate(input_ids=[10], sampling_params=COUNT, stream=True)
    first = next(stream)
    del engine
    gc.collect()

    assert [first["output_ids"], *(c["output_ids"] for c in stream)][-1] == [11, 12, 13]
    del stream
    gc.collect()
    thread.join(DEADLINE_S)
    assert not alive(pid)


# Where the tests run in the background the shell has them ignore interrupts, and children of
# theirs, too.
SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from runtime.engine import Engine
engine = Engine(model_path={folder!r}, scheduler_main="tests.runtime.stand_ins:{main}")
print(engine.server_info()["pid"], flush=True)
{then}
"""


def start(folder: Path, then: str = "", main: str = "steady") -> "subprocess.Popen[str]":
    """Start a script that has no guard around its own code."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(folder=str(checkpoint(folder)), main=main, then=then))
    temporary = folder / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=script_environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_that_just_ends_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as script:
        out, err = script.communicate(timeout=DEADLINE_S)

    assert (script.returncode, err) == (0, "")
    assert not alive(int(out))
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("where", ["starting", "waiting"])
def test_an_interrupted_script_leaves_nothing(tmp_path: Path, where: str) -> None:
    main = "never_ready" if where == "starting" else "steady"
    then = f"engine.generate(input_ids=[{SILENT_AT}])"
    with start(tmp_path, then, main) as script:
        children = Path(f"/proc/{script.pid}/task")
        if where == "waiting":
            assert script.stderr is not None
            assert script.stderr.readline() == "left waiting\n"
        pids = _children(children)

        script.send_signal(signal.SIGINT)

        _, err = script.communicate(timeout=DEADLINE_S)

    assert err.endswith("KeyboardInterrupt\n")
    assert script.returncode == -signal.SIGINT
    assert not any(alive(pid) for pid in pids)
    assert list((tmp_path / "tmp").iterdir()) == []


def _children(tasks: Path) -> list[int]:
    """Return the processes that any thread of a process has started, once there is one."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            found = [(task / "children").read_text().split() for task in tasks.iterdir()]
            if any(found):
                return [int(pid) for pids in found for pid in pids]
        time.sleep(0.02)
    raise AssertionError("it started nothing")
