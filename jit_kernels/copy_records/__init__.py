"""Packed records copied from pages to pages."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.kv_workspace import RecordSet
from jit_kernels.paged_attention import RECORD_BYTES
from jit_kernels.registry import Backend, select

__all__ = ["copy_records"]

_MODULE = "jit_kernels.copy_records"
_copy_records: Callable[..., None] = select(
    "copy_records",
    [
        Backend("triton", f"{_MODULE}.triton_backend:copy_records", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:copy_records"),
    ],
)


def copy_records(source: RecordSet, target: RecordSet) -> None:
    """Write the i-th record of `source` to the i-th slot of `target`, in place.

    source  [M] slots
    target  [M] slots, -1 where either has none: nothing is written; repeats only with equal
            records. Pages that are read must not be written by the same call

    A chunk's window goes through pages of the step: keys before the chunk are copied there, its
    own are stored behind them, and what resume points and rows keep is copied from there, so that
    no record is overwritten while it is still to be read. Raises ShapeError.
    """
    rows = source.slots.shape[0]
    for name, part in (("source", source), ("target", target)):
        check_shape(f"{name}.pages", part.pages, None, part.layout.page_bytes)
        check_dtype(f"{name}.pages", part.pages, torch.uint8)
        check_shape(f"{name}.slots", part.slots, rows)
        check_dtype(f"{name}.slots", part.slots, torch.int32)
        if not part.pages.is_contiguous() or not part.slots.is_contiguous():
            raise ShapeError(f"{name}: pages and slots must be contiguous")
        if (part.layout.data_bytes, part.layout.scale_bytes) != RECORD_BYTES:
            raise ShapeError(f"{name}: packed records have 576 + 8 bytes, not {part.layout}")
    _copy_records(source.pages, source, target)
