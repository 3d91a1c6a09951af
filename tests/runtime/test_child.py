"""What a child process does before its end, and when its parent dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.child import CONFIG_EXIT_CODE, EXIT_WORDS_BYTES

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


def run(code: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("words", ["why \\u00fc", "x" * (EXIT_WORDS_BYTES + 9), "\\ud800"])
def test_last_words_go_into_the_pipe_before_the_end(words: str) -> None:
    code = f"""
import os
from runtime.child import exit_with
read, write = os.pipe()
if pid := os.fork():
    os.close(write)
    print(len(open(read, "rb").read()), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    exit_with(write, "{words}", {CONFIG_EXIT_CODE})
"""
    ended = run(code)

    size, status = ended.stdout.split()[:2]
    assert 0 < int(size) <= EXIT_WORDS_BYTES, ended.stderr
    assert int(status) == CONFIG_EXIT_CODE


def test_words_that_nobody_reads_do_not_keep_a_process_alive() -> None:
    code = (
        "import os; from runtime.child import exit_with; r, w = os.pipe(); os.close(r);"
        "exit_with(w, 'unheard', 3)"
    )

    assert run(code).returncode == 3


def test_the_log_begins_at_its_level_and_libraries_at_warnings() -> None:
    code = (
        "import logging; from runtime.child import configure_logging; configure_logging('info');"
        "logging.getLogger('umbra.rank').info('ours'); logging.getLogger('other').info('theirs');"
        "logging.getLogger('other').warning('a warning')"
    )

    told = run(code).stderr

    assert "INFO ours" in told
    assert "theirs" not in told
    assert "WARNING a warning" in told


def test_a_child_does_not_outlive_its_parent() -> None:
    child = "import os, time; from runtime.child import die_with_parent;"
    child += "die_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())

        process.send_signal(signal.SIGKILL)

        ends = time.monotonic() + LIMIT_S
        while os.path.exists(f"/proc/{pid}"):
            assert time.monotonic() < ends
            time.sleep(0.02)


def test_a_child_whose_parent_is_gone_already_ends() -> None:
    """What it is told is not the process that it has as a parent."""
    code = (
        "import time; from runtime.child import die_with_parent; die_with_parent(1 << 22);"
        "time.sleep(600)"
    )

    assert run(code).returncode == 1


def test_all_processes_of_a_group_write_their_stacks_and_live_on() -> None:
    """One that does not know the signal would die of it: it is left out."""
    code = """
import os, subprocess, sys
from runtime.child import configure_logging, write_stacks_of_group
waits = "print(1, flush=True); import sys; sys.stdin.read()"
knows = "from runtime.child import write_stacks_on_signal as w; w();" + waits
def start(code, group):
    made = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, process_group=group)
    made.stdout.readline()
    return made
first = start(knows, 0)
others = [start(knows, first.pid), start(waits, first.pid)]
configure_logging("info")
write_stacks_of_group(first.pid)
print([one.poll() for one in (first, *others)], first.pid, others[0].pid, others[1].pid)
for one in (first, *others):
    one.stdin.close()
    one.wait()
"""
    ended = run(code)

    told, first, second, ignorant = ended.stdout.rsplit(" ", 3)
    assert told == "[None, None, None]", ended.stderr
    assert f"stacks of process {first}: " in ended.stderr
    assert f"stacks of process {second}: " in ended.stderr
    assert ignorant.strip() not in ended.stderr
    assert ended.stderr.count("most recent call first") == 3
