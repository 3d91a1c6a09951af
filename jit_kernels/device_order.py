"""When a kernel in Triton begins: while the one before it ends, on devices that allow that.

A launch with `**early()` is prepared, and its programs may be there, while the kernel before it
still runs. It names `EARLY` among the kernel's constants, and a kernel that has it begins with
`await_kernels(EARLY)`: nothing that another kernel writes is read, and nothing written, before.

    launch     1  ###############|
               2         . . wait|##########|           . prepared, weights on their way
               3                 | . .  wait|######     prepared when all of 2 have waited for 1

So launch 1 has ended when launch 3 begins, whatever 2 still does.

Vendors' kernels may be launched early and wait for nothing: the kernel before one of those begins
with `await_quietly(EARLY)`, so that it has ended before the other begins. The kernel behind one is
launched with `**late()`.
"""

import functools

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from jit_kernels.cuda_device import why_no_hopper

__all__ = ["await_kernels", "await_quietly", "early", "late"]


@triton.jit
def await_kernels(EARLY: tl.constexpr) -> None:
    """Wait for all kernels before this one, then let the one after it be prepared."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def await_quietly(EARLY: tl.constexpr) -> None:
    """Wait for all kernels before this one; the one after it begins when this one has ended."""
    if EARLY:
        gdc_wait()


@functools.cache
def early() -> dict[str, bool]:
    """Return options of a launch: early on Hopper and later devices, else as any other."""
    return {"EARLY": False} if why_no_hopper() else {"EARLY": True, "launch_pdl": True}


@functools.cache
def late() -> dict[str, bool]:
    """Return options of a launch that begins when all before have ended, and is followed early."""
    return {"EARLY": early()["EARLY"]}
