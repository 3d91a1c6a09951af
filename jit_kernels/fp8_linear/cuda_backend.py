"""Products of up to eight rows of fp8 numbers in CUDA C++.

The source is in `cuda`; nvcc compiles it at first use. The weight goes from memory through
registers into tensor cores once. Sums of 128 channels are scaled into float32 sums. A launch may
begin, and read the weight, before the one before it has ended: whoever writes a weight lets the
device finish before its use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.fp8_linear.reference import BLOCK

MOST_ROWS = 8
_LINES, _SPLITS = 16, (1, 2, 4, 8)
# Warps that read enough at once to fill the memory's pipe.
_ENOUGH_WARPS = 2048


def fp8_linear(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Multiply what the kernel `takes`; see `jit_kernels.fp8_linear.fp8_linear`."""
    rows, (lines, depth) = codes.shape[0], weight.shape[-2:]
    groups = weight.shape[0] if weight.dim() == 3 else 1
    out = torch.empty((*codes.shape[:-1], lines), dtype=torch.bfloat16, device=codes.device)
    call(
        "stream_fp8",
        codes.device,
        *(codes.data_ptr(), codes.stride(0)),
        *(scales.data_ptr(), scales.stride(0), scales.stride(-1)),
        *(weight.data_ptr(), weight_scales.data_ptr(), out.data_ptr()),
        *(rows, groups, lines, depth, split(groups * lines, depth)),
    )
    return out


# Groups that `takes_groups` are a product with one more axis.
fp8_linear_grouped = fp8_linear


def takes(codes: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor) -> bool:
    """Say whether the kernel takes rows and weight: few rows, 16 bytes at a time."""
    return (
        0 < codes.shape[0] <= MOST_ROWS
        and takes_weight(weight, weight_scales)
        and codes.stride(-1) == 1
        and not (codes.stride(0) | codes.data_ptr()) % 16
    )


def takes_groups(codes: torch.Tensor, scales: torch.Tensor) -> bool:
    """Say whether groups of a row, and their scales, follow each other as the kernel reads them."""
    scales_apart = scales.shape[2] * scales.stride(2)
    return codes.stride(1) == codes.shape[2] and scales.stride(1) == scales_apart


def takes_weight(weight: torch.Tensor, weight_scales: torch.Tensor) -> bool:
    """Say whether a weight lies as the kernels read it."""
    return (
        weight.shape[-2] % _LINES == 0
        and weight.numel() > 0
        and weight.is_contiguous()
        and weight_scales.is_contiguous()
        and not weight.data_ptr() % 16
    )


def call(entry: str, device: torch.device, *arguments: float | None) -> None:
    """Launch one entry of the library on the current stream of a device.

    arguments  as in `cuda/stream_fp8.cu`, without the stream; pointers as integers

    Raises RuntimeError with the device's words if it cannot be launched.
    """
    error = launched(device, getattr(_library(), f"{entry}_call"), *arguments)
    if error:
        raise RuntimeError(f"{entry}: {_library().stream_fp8_words(error).decode()}")


@functools.cache
def split(lines: int, depth: int) -> int:
    """Return how many warps share the channels of the same lines, whatever the number of rows."""
    most = depth // BLOCK
    enough = (n for n in _SPLITS if n == _SPLITS[-1] or lines // _LINES * n >= _ENOUGH_WARPS)
    return min(next(enough), max(n for n in _SPLITS if n <= most))


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("stream_fp8", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    real = ctypes.c_float
    library.stream_fp8_call.argtypes = [
        *(pointer, wide, pointer, wide, wide, pointer, pointer, pointer),
        *(number, number, number, number, number, pointer),
    ]
    library.stream_row_call.argtypes = [
        *(pointer, pointer, real, pointer, pointer, pointer),
        *(number, number, number, pointer),
    ]
    library.stream_fp8_words.restype = ctypes.c_char_p
    return library
