"""Encoding and storing in CUDA C++: rows in registers, what lanes must know by shuffles.

The sources are in `cuda`; they are compiled by nvcc at first use. They take fp8 records of 512
bfloat16 numbers of which 64 turn, 16 bytes aligned; all others are left to the reference.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import is_aligned, is_bf16, processors
from jit_kernels.paged_rows import PageLayout
from jit_kernels.store_kv import reference

_RECORD, _TURNED = 512, 64


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
    aligned = is_aligned(weight) and is_aligned(rotation)
    if not aligned or not _is_record(pages, x, layout, record_format, rotation.shape[2]):
        reference.norm_rope_store(pages, slots, x, layout, weight, rotation, eps, record_format)
        return
    if not x.shape[0]:
        return
    slots = slots.contiguous()
    error = launched(
        pages.device,
        _library().norm_rope_store_call,
        *(x.data_ptr(), x.stride(0)),
        *(weight.data_ptr(), rotation.data_ptr(), eps),
        *(slots.data_ptr(), pages.data_ptr(), x.shape[0]),
        *(layout.page_rows, layout.data_bytes, layout.scale_bytes, layout.page_bytes),
        processors(pages.device),
    )
    if error:
        raise RuntimeError(f"norm_rope_store: {_library().store_words(error).decode()}")


def _is_record(
    pages: torch.Tensor, rows: torch.Tensor, layout: PageLayout, record_format: str, turned: int
) -> bool:
    return (
        record_format == "fp8"
        and is_bf16(rows)
        and (rows.shape[1], turned) == (_RECORD, _TURNED)
        and not (layout.page_bytes | layout.data_bytes) % 16
        and is_aligned(pages)
        and is_aligned(rows)
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("store_kv", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.norm_rope_store_call.argtypes = [
        *(pointer, wide, pointer, pointer, ctypes.c_float),
        *(pointer, pointer, number, number, number, number, wide),
        *(number, pointer),
    ]
    library.store_words.restype = ctypes.c_char_p
    return library
