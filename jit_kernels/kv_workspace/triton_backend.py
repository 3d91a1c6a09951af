"""A workspace in Triton: one launch for all sets, a program for some records of one of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.paged_attention.device_records import code_part, find_records, rotated_part
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.kv_workspace import RecordSet

ROWS = 16


@triton.jit
def _store(
    out_ptr: tl.tensor, line: tl.tensor, rows: tl.tensor, numbers: tl.tensor, FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    at = out_ptr + line.to(tl.int64)[:, None] * 512 + (FIRST + tl.arange(0, WIDTH))[None, :]
    numbers = narrow(numbers.to(tl.float32), tl.bfloat16)
    tl.store(at, numbers, mask=(line < rows)[:, None])


@triton.jit
def _decode(
    out_ptr: tl.tensor, pages_ptr: tl.tensor, slots_ptr: tl.tensor, rows: tl.tensor,
    program: tl.tensor, PAGE_ROWS: tl.constexpr, PAGE_BYTES: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Decode records [ROWS * program, ..) of a set; `out_ptr` is the set's first row."""
    line = program * ROWS + tl.arange(0, ROWS)
    slots = tl.load(slots_ptr + line, mask=line < rows, other=-1)
    found = slots >= 0
    page, row, low, high = find_records(pages_ptr, slots, PAGE_ROWS, PAGE_BYTES)
    k = code_part(pages_ptr, page, row, found, low, PAGE_BYTES, 0, 4, 0, ROWS)
    _store(out_ptr, line, rows, k, 0, 256)
    k = code_part(pages_ptr, page, row, found, high, PAGE_BYTES, 256, 2, 0, ROWS)
    _store(out_ptr, line, rows, k, 256, 128)
    k = code_part(pages_ptr, page, row, found, high, PAGE_BYTES, 384, 1, 16, ROWS)
    _store(out_ptr, line, rows, k, 384, 64)
    _store(out_ptr, line, rows, rotated_part(pages_ptr, page, row, found, PAGE_BYTES), 448, 64)


@prepared
@triton.jit(do_not_specialize=["rows0", "rows1", "rows2"])
def _kernel(
    out_ptr: tl.tensor, pages0_ptr: tl.tensor, slots0_ptr: tl.tensor, rows0: tl.tensor,
    pages1_ptr: tl.tensor, slots1_ptr: tl.tensor, rows1: tl.tensor, pages2_ptr: tl.tensor,
    slots2_ptr: tl.tensor, rows2: tl.tensor, PAGE_ROWS0: tl.constexpr, PAGE_BYTES0: tl.constexpr,
    PAGE_ROWS1: tl.constexpr, PAGE_BYTES1: tl.constexpr, PAGE_ROWS2: tl.constexpr,
    PAGE_BYTES2: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0)
    programs0, programs1 = tl.cdiv(rows0, ROWS), tl.cdiv(rows1, ROWS)
    second = out_ptr + rows0.to(tl.int64) * 512
    third = second + rows1.to(tl.int64) * 512
    if program < programs0:
        _decode(
            out_ptr, pages0_ptr, slots0_ptr, rows0, program, PAGE_ROWS0, PAGE_BYTES0, ROWS
        )  # fmt: skip
    elif program < programs0 + programs1:
        program -= programs0
        _decode(second, pages1_ptr, slots1_ptr, rows1, program, PAGE_ROWS1, PAGE_BYTES1, ROWS)
    else:
        program -= programs0 + programs1
        _decode(third, pages2_ptr, slots2_ptr, rows2, program, PAGE_ROWS2, PAGE_BYTES2, ROWS)


def fill_workspace(out: torch.Tensor, sets: "Sequence[RecordSet]") -> None:
    """Decode records; see `jit_kernels.kv_workspace.fill_workspace`."""
    filled = [part for part in sets if part.slots.shape[0]]
    if not filled:
        return
    programs = sum(triton.cdiv(part.slots.shape[0], ROWS) for part in filled)
    arguments: list[torch.Tensor | int] = []
    layouts: dict[str, int] = {}
    for number in range(3):
        part = filled[number] if number < len(filled) else filled[0]
        rows = part.slots.shape[0] if number < len(filled) else 0
        arguments += [part.pages, part.slots, rows]
        layouts[f"PAGE_ROWS{number}"] = part.layout.page_rows
        layouts[f"PAGE_BYTES{number}"] = part.layout.page_bytes
    _kernel[(programs,)](out, *arguments, **layouts, ROWS=ROWS, num_warps=4)
