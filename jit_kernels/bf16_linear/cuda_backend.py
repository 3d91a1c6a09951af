"""Products of up to eight rows of bfloat16 numbers in CUDA C++.

The source is in `cuda`; nvcc compiles it at first use. A launch may begin, and read the weight,
before the one before it has ended: whoever writes a weight lets the device finish before its use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load

MOST_ROWS = 8
# Longer weights are left to others. 0 switches this backend off.
MOST_LINES = 8192
_LINES, _CLUSTERS = 16, (1, 2, 4, 8)
# Channels that one block's warps take at once, and blocks that fill the device.
_BLOCK_DEPTH, _ENOUGH_BLOCKS = 512, 256


def bf16_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply what the kernel `takes`; see `jit_kernels.bf16_linear.bf16_linear`."""
    rows, (lines, depth) = x.shape[0], weight.shape
    out = torch.empty((rows, lines), dtype=torch.float32, device=x.device)
    error = launched(
        x.device,
        _library().stream_bf16_call,
        *(x.data_ptr(), x.stride(0), weight.data_ptr(), out.data_ptr()),
        *(rows, lines, depth, cluster(lines, depth)),
    )
    if error:
        raise RuntimeError(f"bf16_linear: {_library().stream_bf16_words(error).decode()}")
    return out


def takes(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Say whether the kernel takes the operands: few rows, 16 bytes at a time, a narrow weight."""
    lines, depth = weight.shape
    return (
        0 < x.shape[0] <= MOST_ROWS
        and 0 < lines <= MOST_LINES
        and depth > 0
        and weight.is_contiguous()
        and x.stride(1) == 1
        and not (depth | x.stride(0)) % 8
        and not (x.data_ptr() | weight.data_ptr()) % 16
    )


@functools.cache
def cluster(lines: int, depth: int) -> int:
    """Return how many blocks share the channels of the same lines, whatever the number of rows."""
    tiles = -(-lines // _LINES)
    enough = next(n for n in _CLUSTERS if n == _CLUSTERS[-1] or tiles * n >= _ENOUGH_BLOCKS)
    return min(enough, max(n for n in _CLUSTERS if n == 1 or (n - 1) * _BLOCK_DEPTH < depth))


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("stream_bf16", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.stream_bf16_call.argtypes = [
        *(pointer, wide, pointer, pointer, number, number, number, number, pointer)
    ]
    library.stream_bf16_words.restype = ctypes.c_char_p
    return library
