"""Encoding and storing in CUDA C++: rows in registers, what lanes must know by shuffles.

The sources are in `cuda`; they are compiled by nvcc at first use. They take fp8 records of 512
numbers of which 64 turn, and fp8 keys of 128, 16 bytes aligned; all others go through Triton.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import processors
from jit_kernels.paged_rows import PageLayout
from jit_kernels.store_kv import triton_backend

_RECORD, _TURNED, _KEY = 512, 64, 128


def store_records(
    pages: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    layout: PageLayout,
    record_format: str,
    rope_channels: int,
) -> None:
    """Encode and store; see `jit_kernels.store_kv.store_records`."""
    if not _is_record(pages, kv, layout, record_format, rope_channels):
        triton_backend.store_records(pages, slots, kv, layout, record_format, rope_channels)
        return
    _records(pages, slots, kv, layout, None)


def norm_rope_store(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    weight: torch.Tensor,
    rotation: torch.Tensor,
    eps: float,
    record_format: str,
) -> None:
    """Norm, rotate, encode and store; see `jit_kernels.store_kv.norm_rope_store`."""
    weight, rotation = weight.contiguous(), rotation.contiguous()
    aligned = _is_aligned(weight) and _is_aligned(rotation)
    if not aligned or not _is_record(pages, x, layout, record_format, rotation.shape[2]):
        triton_backend.norm_rope_store(
            pages, slots, x, layout, weight, rotation, eps, record_format
        )
        return
    _records(pages, slots, x, layout, (weight, rotation, eps))


def store_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    layout: PageLayout,
    record_format: str,
) -> None:
    """Encode and store keys; see `jit_kernels.store_kv.store_keys`."""
    parts = layout.page_bytes | layout.data_bytes * layout.page_rows
    usual = record_format == "fp8" and keys.shape[1] == _KEY and not parts % 8
    if not usual or not _is_aligned(pages) or not _is_aligned(keys):
        triton_backend.store_keys(pages, slots, keys, layout, record_format)
        return
    if not keys.shape[0]:
        return
    slots = slots.contiguous()
    error = launched(
        pages.device,
        _library().store_keys_call,
        *(keys.data_ptr(), keys.dtype == torch.bfloat16, keys.stride(0), _KEY**-0.5),
        *(slots.data_ptr(), pages.data_ptr(), keys.shape[0], *_sizes(layout)),
    )
    _check("store_keys", error)


def _records(
    pages: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    layout: PageLayout,
    normed: tuple[torch.Tensor, torch.Tensor, float] | None,
) -> None:
    if not rows.shape[0]:
        return
    slots = slots.contiguous()
    weight, rotation, eps = normed or (None, None, 0.0)
    error = launched(
        pages.device,
        _library().store_records_call,
        *(rows.data_ptr(), rows.dtype == torch.bfloat16, rows.stride(0)),
        *(None if weight is None else weight.data_ptr(),),
        *(None if rotation is None else rotation.data_ptr(), eps),
        *(slots.data_ptr(), pages.data_ptr(), rows.shape[0], *_sizes(layout)),
        processors(pages.device),
    )
    _check("store_records", error)


def _is_record(
    pages: torch.Tensor, rows: torch.Tensor, layout: PageLayout, record_format: str, turned: int
) -> bool:
    return (
        record_format == "fp8"
        and (rows.shape[1], turned) == (_RECORD, _TURNED)
        and not (layout.page_bytes | layout.data_bytes) % 16
        and _is_aligned(pages)
        and _is_aligned(rows)
    )


def _is_aligned(tensor: torch.Tensor) -> bool:
    """Say whether rows begin at multiples of 16 bytes, with numbers side by side."""
    step = tensor.stride(0) * tensor.element_size() if tensor.ndim > 1 else 0
    return tensor.stride(-1) == 1 and not (tensor.data_ptr() | step) % 16


def _sizes(layout: PageLayout) -> tuple[int, int, int, int]:
    return layout.page_rows, layout.data_bytes, layout.scale_bytes, layout.page_bytes


def _check(op: str, error: int) -> None:
    if error:
        raise RuntimeError(f"{op}: {_library().store_words(error).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("store_kv", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    place = (pointer, pointer, number, number, number, number, wide)
    library.store_records_call.argtypes = [
        *(pointer, number, wide, pointer, pointer, ctypes.c_float),
        *(*place, number, pointer),
    ]
    library.store_keys_call.argtypes = [pointer, number, wide, ctypes.c_float, *place, pointer]
    library.store_words.restype = ctypes.c_char_p
    return library
