"""Sorted rows gated and rounded in CUDA C++, a few neighbours at a time.

The sources are in `cuda`; they are compiled by nvcc at first use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.grouped_moe.sorted_rows import SortedRows


def gate_rows(products: torch.Tensor, limit: float, hidden: SortedRows) -> None:
    """Gate and round; see `jit_kernels.grouped_moe.triton_gate.gate_rows`."""
    rows, inner = hidden.codes.shape
    if not rows:
        return
    error = launched(
        products.device,
        _library().gate_rows_call,
        *(products.data_ptr(), hidden.member.data_ptr()),
        *(hidden.codes.data_ptr(), hidden.scales.data_ptr()),
        *(rows, hidden.first * hidden.size, inner, limit),
    )
    if error:
        raise RuntimeError(f"gate_rows: {_library().gate_words(error).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("gate_rows", Path(__file__).parent / "cuda")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.gate_rows_call.argtypes = [
        *(pointer, pointer, pointer, pointer, number, number, number, ctypes.c_float, pointer)
    ]
    library.gate_words.restype = ctypes.c_char_p
    return library
