"""Packed records gathered from pages and decoded into a workspace of plain numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.paged_attention import RECORD_BYTES, WIDTH
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select

__all__ = ["MOST_SETS", "RecordSet", "fill_workspace"]

MOST_SETS = 3

_MODULE = "jit_kernels.kv_workspace"
_fill_workspace: Callable[..., None] = select(
    "fill_workspace",
    [
        Backend("triton", f"{_MODULE}.triton_backend:fill_workspace", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:fill_workspace"),
    ],
)


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Records at slots of the pages of one pool and layer.

    pages   [U, layout.page_bytes] uint8, contiguous   packed records of 448 + 64 channels
    layout  576 data and 8 scale bytes a record
    slots   [M] int32, contiguous   page * page_rows + row in the page; -1: a row of zeros
    """

    pages: torch.Tensor
    layout: PageLayout
    slots: torch.Tensor


def fill_workspace(out: torch.Tensor, sets: Sequence[RecordSet]) -> None:
    """Write the numbers of the sets' records to rows 0, 1, ... of `out`, one set after the other.

    out   [S, 512] bfloat16, contiguous; rows beyond those of all sets are left as they are
    sets  at most 3: the window before the chunk, the chunk, the compressed blocks. The chunk's own
          keys come as records like all others, stored to pages of the step before the call, so
          that every reader sees what was stored

    Every number of a record is one of bfloat16: nothing is rounded. Raises ShapeError.
    It moves 584 + 1,024 bytes a record; those of a C4 layer at a context of 64k, 16,384 blocks,
    take 26 MB, 1 / 200 of the time that a chunk of 8,192 tokens spends attending.
    """
    check_shape("out", out, None, WIDTH)
    check_dtype("out", out, torch.bfloat16)
    rows = sum(part.slots.shape[0] for part in sets)
    if rows > out.shape[0] or len(sets) > MOST_SETS or not out.is_contiguous():
        raise ShapeError(f"{len(sets)} sets of {rows} rows do not fit out {list(out.shape)}")
    for part in sets:
        check_shape("pages", part.pages, None, part.layout.page_bytes)
        check_dtype("pages", part.pages, torch.uint8)
        check_shape("slots", part.slots, None)
        check_dtype("slots", part.slots, torch.int32)
        if not part.pages.is_contiguous() or not part.slots.is_contiguous():
            raise ShapeError("pages and slots must be contiguous")
        if (part.layout.data_bytes, part.layout.scale_bytes) != RECORD_BYTES:
            raise ShapeError(f"packed records have 576 + 8 bytes, not those of {part.layout}")
    _fill_workspace(out, sets)
