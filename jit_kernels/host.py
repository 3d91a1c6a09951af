"""The kernels in C for tensors on the CPU: every `<op>/host.c`, compiled together at first use.

They take plain pointers. What the packages' functions allow and C does not is evened out by
`rows_of`: numbers that are not float32, and rows that do not lie one after another. Rows do not
know each other, so `by_rows` may deal many of them out to threads.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from jit_kernels.host_library import load
from jit_kernels.registry import Backend, BackendUnavailable

__all__ = ["by_rows", "function", "on_host", "raise_fault", "rows_of"]

logger = logging.getLogger("umbra.kernels")

MANY_ROWS = 256  # fewer are done before another thread has woken up
MANY_BYTES = 1 << 21
ALIGNED = 4  # rows and columns that a kernel takes together
MOST_THREADS = 8
# More than one part a thread: whoever is kept waiting for a core keeps the others for a part only.
PARTS = 4
# A product and a sum may be one instruction; that each row gets the same ones is what tests hold.
FLAGS = ("-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_TYPES = {"p": c_void_p, "i": c_int64, "f": c_float}


@cache
def _library() -> ctypes.CDLL:
    return load("host_kernels", Path(__file__).parent, sources="*/host.c", flags=FLAGS)


@cache
def why_not() -> str | None:
    """Return why the kernels cannot be compiled here, None where they can; log it once."""
    try:
        _library()
    except BackendUnavailable as fault:
        logger.warning("On the CPU the slow references run, for want of kernels: %s", fault)
        return str(fault)
    return None


def on_host(target: str) -> Backend:
    """Return the backend that runs `jit_kernels.<target>`, "op.host:function", on the CPU."""
    return Backend("host", f"jit_kernels.{target}", why_not, device="cpu")


def function(name: str, arguments: str) -> Callable[..., Any]:
    """Return the C function `name`; its arguments, a letter each: pointer, int64, float."""
    result = getattr(_library(), name)
    result.argtypes = [_TYPES[letter] for letter in arguments]
    return result


def raise_fault(code: int) -> None:
    """Raise what a kernel's non-zero result stands for: IndexError or MemoryError."""
    if code == -1:
        raise IndexError("an index is out of range")
    if code:
        raise MemoryError


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in float32 with its last axis contiguous: itself, or a copy."""
    wide = x if x.dtype is torch.float32 else x.to(torch.float32)
    return wide if wide.stride(-1) == 1 else wide.contiguous()


def by_rows(work: Callable[[int, int], None], rows: int, *, nbytes: int = 0) -> None:
    """Call `work(first, last)` for parts of [0, rows) that cover it, on several threads if many.

    work    a call of a kernel on these rows, or columns, which must not depend on each other
    nbytes  that all of it reads: if many, few rows are shared as well
    """
    threads = _threads() if rows >= MANY_ROWS or nbytes >= MANY_BYTES else 1
    if threads == 1:
        work(0, rows)
        return
    size = -(-rows // (threads * PARTS * ALIGNED)) * ALIGNED
    parts = iter([(first, min(first + size, rows)) for first in range(0, rows, size)])

    def take_parts() -> None:
        for part in parts:
            work(*part)

    others = [_pool().submit(take_parts) for _ in range(threads - 1)]
    try:
        take_parts()
    finally:
        for other in others:
            if not other.cancel():  # who has not begun by now has nothing left to do
                other.result()


@cache
def _threads() -> int:
    # Only Linux tells which processors this process may use.
    mine = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return min(MOST_THREADS, len(mine))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS - 1, thread_name_prefix="host-kernels")
