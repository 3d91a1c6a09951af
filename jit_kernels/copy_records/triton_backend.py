"""Packed records copied in Triton, eight bytes a number: 72 of data, one of scales."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.kv_workspace import RecordSet

ROWS = 16


@triton.jit
def _places(slots: tl.tensor, PAGE_ROWS: tl.constexpr, PAGE_BYTES: tl.constexpr) -> tl.tensor:
    """Return the first word of the data and the word of the scales."""
    page, row = (slots // PAGE_ROWS).to(tl.int64), slots % PAGE_ROWS
    start = page * (PAGE_BYTES // 8)
    return start + row * 72, start + PAGE_ROWS * 72 + row


@prepared
@triton.jit(do_not_specialize=["rows"])
def _kernel(
    source_ptr: tl.tensor, source_slots_ptr: tl.tensor, target_ptr: tl.tensor,
    target_slots_ptr: tl.tensor, rows: tl.tensor, SOURCE_ROWS: tl.constexpr,
    SOURCE_BYTES: tl.constexpr, TARGET_ROWS: tl.constexpr, TARGET_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:  # fmt: skip
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.load(source_slots_ptr + line, mask=line < rows, other=-1)
    target = tl.load(target_slots_ptr + line, mask=line < rows, other=-1)
    moved = (source >= 0) & (target >= 0)
    data_from, scales_from = _places(tl.where(moved, source, 0), SOURCE_ROWS, SOURCE_BYTES)
    data_to, scales_to = _places(tl.where(moved, target, 0), TARGET_ROWS, TARGET_BYTES)
    source_ptr = source_ptr.to(tl.pointer_type(tl.int64))
    target_ptr = target_ptr.to(tl.pointer_type(tl.int64))
    word = tl.arange(0, 128)[None, :]
    mask = moved[:, None] & (word < 72)
    data = tl.load(source_ptr + data_from[:, None] + word, mask=mask, other=0)
    scales = tl.load(source_ptr + scales_from, mask=moved, other=0)
    tl.store(target_ptr + data_to[:, None] + word, data, mask=mask)
    tl.store(target_ptr + scales_to, scales, mask=moved)


def copy_records(pages: torch.Tensor, source: "RecordSet", target: "RecordSet") -> None:
    """Copy; see `jit_kernels.copy_records.copy_records`. `pages` are those of `source`."""
    rows = source.slots.shape[0]
    if not rows:
        return
    _kernel[(triton.cdiv(rows, ROWS),)](
        *(pages, source.slots, target.pages, target.slots, rows),
        SOURCE_ROWS=source.layout.page_rows,
        SOURCE_BYTES=source.layout.page_bytes,
        TARGET_ROWS=target.layout.page_rows,
        TARGET_BYTES=target.layout.page_bytes,
        ROWS=ROWS,
        num_warps=4,
    )
