"""Kernels in CUDA C++ that read rows or heads once, 16 bytes at a time, and write what they become.

One library for several ops, which call it in the sizes that it takes; its sources are in
`rms_norm/cuda`, and nvcc compiles them at first use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load

__all__ = ["call", "is_aligned", "is_bf16", "processors"]


def call(entry: str, device: torch.device, *arguments: float | None) -> None:
    """Launch one entry of the library on the current stream of a device.

    arguments  as in `rms_norm/cuda/rows.cu`, without the stream; pointers as integers

    Raises RuntimeError with the device's words if it cannot be launched.
    """
    error = launched(device, getattr(_library(), f"{entry}_call"), *arguments)
    if error:
        raise RuntimeError(f"{entry}: {_library().rows_words(error).decode()}")


def is_aligned(tensor: torch.Tensor) -> bool:
    """Say whether rows begin at multiples of 16 bytes, with numbers side by side."""
    step = tensor.stride(0) * tensor.element_size() if tensor.ndim > 1 else 0
    return tensor.stride(-1) == 1 and not (tensor.data_ptr() | step) % 16


def is_bf16(tensor: torch.Tensor) -> bool:
    """Say whether numbers are bfloat16, else they are float32."""
    return tensor.dtype == torch.bfloat16


@functools.cache
def processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("rows", Path(__file__).parent / "rms_norm" / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    real = ctypes.c_float
    library.norm_heads_call.argtypes = [*(pointer, pointer, pointer, number, number, real, pointer)]
    library.round_heads_call.argtypes = [
        *(pointer, wide, pointer, pointer, pointer, wide, number, number, pointer)
    ]
    library.norm_rows_call.argtypes = [
        *(pointer, wide, pointer, pointer, pointer, wide),
        *(number, number, real, number, pointer),
    ]
    library.rows_words.restype = ctypes.c_char_p
    return library
