"""The C heap: a process that computes keeps what it has freed, another one gives it back.

A prefill step on the CPU makes and drops tensors of tens of megabytes. glibc would give each of
them back to the system, and take its pages anew, one fault each: a fifth of the step.
"""

import ctypes

__all__ = ["keep_freed_memory", "trim_heap"]

# Source: glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_GIBIBYTE = 1 << 30


def keep_freed_memory() -> bool:
    """Let the heap keep freed memory for its next use; False where the C library has no such knob.

    The process then holds the most that it ever needed at once. Only what is allocated in pieces
    of more than 1 GiB goes back to the system.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _GIBIBYTE) and mallopt(_M_TRIM_THRESHOLD, _GIBIBYTE))


def trim_heap() -> bool:
    """Give the pages of the heap that nothing is in back to the system; return whether any were.

    Other threads of the interpreter run meanwhile. False where the C library has no such call.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(0))
