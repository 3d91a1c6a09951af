"""Prefetches into the L2 cache in CUDA C++, by the copy engines of all multiprocessors.

The sources are in `cuda`; nvcc compiles them at first use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.prefetch_weights import MOST_WEIGHTS


def prefetch_weights(*weights: torch.Tensor) -> None:
    """Ask for weights; see `jit_kernels.prefetch_weights.prefetch_weights`."""
    parts = [(one.data_ptr(), one.nbytes) for one in weights]
    parts += [(0, 0)] * (4 - len(parts))
    error = launched(
        weights[0].device,
        _library().prefetch_weights_call,
        *(word for part in parts for word in part),
    )
    if error:
        words = _library().prefetch_weights_words(error).decode()
        raise RuntimeError(f"prefetch_weights: {words}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("prefetch_weights", Path(__file__).parent / "cuda")
    library.prefetch_weights_call.argtypes = [
        *([ctypes.c_void_p, ctypes.c_longlong] * MOST_WEIGHTS),
        ctypes.c_void_p,
    ]
    library.prefetch_weights_words.restype = ctypes.c_char_p
    return library
