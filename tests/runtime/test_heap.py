"""A heap told to keep what is freed takes no new pages for the next tensors."""

import subprocess
import sys

import pytest

CODE = """
import resource
from runtime.heap import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

print(keep_freed_memory())
for _ in range(3):
    before = faults()
    b"x" * 40_000_000
    print(faults() - before)
"""


def test_memory_that_was_freed_is_used_again_without_a_fault() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    known, *faults = done.stdout.split()

    if known == "False":
        pytest.skip("this C library has no mallopt")
    assert int(faults[0]) > 1000
    assert int(faults[2]) < 100
