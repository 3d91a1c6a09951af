"""The tests of Triton kernels in Triton's interpreter, in processes that work beside other tests.

The interpreter must be asked for before triton is imported, hence processes of their own. They
take long, so they are started before the first test and waited for in the last one.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "jit_kernels" / "kernels"
PROCESSES = 2
# Behind the tests they run beside.
NICENESS = 10


class InterpreterRun:
    """The tests of all kernels, running from here on."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # Its arrays are tiny: threads would cost more than they save, two processes do not.
        wanted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        files = sorted(KERNELS.glob("test_*.py"), key=lambda path: path.stat().st_size)
        self._processes = [
            subprocess.Popen(
                [*command, *map(str, files[first::PROCESSES])],
                cwd=ROOT,
                env=os.environ | wanted,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for first in range(PROCESSES)
        ]
        for process in self._processes:
            nice = os.getpriority(os.PRIO_PROCESS, process.pid)
            os.setpriority(os.PRIO_PROCESS, process.pid, max(nice, NICENESS))

    def results(self) -> list[tuple[int, str]]:
        """Wait, and return the exit code of each process and what it said."""
        told = [process.communicate()[0] for process in self._processes]
        return [(each.returncode, said) for each, said in zip(self._processes, told, strict=True)]

    def stop(self) -> None:
        """End what still runs."""
        for process in self._processes:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
            process.wait()
