"""The tests of Triton kernels in Triton's interpreter, in processes that work beside other tests.

The interpreter must be asked for before triton is imported, hence processes of their own. They
take long, so they are started before the first test and waited for in the last one, which may be
in another process than the one that started them: what they say is in files.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "jit_kernels" / "kernels"
PROCESSES = 2
# Behind the tests they run beside.
NICENESS = 10
POLL_S = 0.2


class InterpreterRun:
    """The tests of all kernels, running from here on.

    folder  gets of each process what it says, then its exit code, and is there until the end
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="interpreter"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not slow and not gpu and not multi_gpu"]
        # Its arrays are tiny: threads would cost more than they save, two processes do not.
        wanted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        files = sorted(KERNELS.glob("test_*.py"), key=lambda path: path.stat().st_size)
        self._processes: list[subprocess.Popen[bytes]] = []
        for first in range(PROCESSES):
            tests = shlex.join([*command, *map(str, files[first::PROCESSES])])
            said, code = self.folder / f"said{first}", self.folder / f"code{first}"
            script = f"{tests} > {said} 2>&1; echo $? > {code}.new; mv {code}.new {code}"
            process = subprocess.Popen(
                ["nice", "-n", str(NICENESS), "sh", "-c", script],
                cwd=ROOT,
                env={name: os.environ[name] for name in os.environ if "XDIST" not in name} | wanted,
                start_new_session=True,
            )
            self._processes.append(process)

    def stop(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder)


# The run that began before all tests, in the process where it did.
INTERPRETED = pytest.StashKey[InterpreterRun]()


def results(folder: Path) -> list[tuple[int, str]]:
    """Wait, and return the exit code of each process and what it said."""
    found: list[tuple[int, str]] = []
    for first in range(PROCESSES):
        code = folder / f"code{first}"
        while not code.exists():
            time.sleep(POLL_S)
        found.append((int(code.read_text()), (folder / f"said{first}").read_text()))
    return found
