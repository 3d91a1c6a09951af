"""The kernels in Triton's interpreter, which must be asked for before triton is imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


KERNELS = ROOT / "tests" / "jit_kernels" / "kernels"


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_all_kernels_equal_their_references_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Its arrays are tiny: threads would cost more than they save, two processes do not.
    wanted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    files = sorted(KERNELS.glob("test_*.py"), key=lambda path: path.stat().st_size)

    halves = [
        subprocess.Popen(
            [*command, *map(str, half)],
            cwd=ROOT,
            env=os.environ | wanted,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for half in (files[::2], files[1::2])
    ]
    told = [half.communicate()[0] for half in halves]

    for half, said in zip(halves, told, strict=True):
        assert half.returncode == 0, said
