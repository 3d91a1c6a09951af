"""Scores of decoding rows in Triton: programs of a row take its pages in turn.

How many programs a row has depends on the number of rows alone, so a launch of a CUDA graph costs
what the blocks of its rows cost, whatever room there is. Rows are not balanced against each other.
"""

import functools
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED
from jit_kernels.paged_logits.device_scores import fp8_operand, weighed_scores
from jit_kernels.paged_rows import PageLayout

if TYPE_CHECKING:
    from jit_kernels.paged_logits import LogitsPlan

WARPS = 4
# A page is named two pages before its keys are fetched, and they are two pages before their use.
STAGES = 5
# Programs of a processor over all rows, as many as its registers hold, and of a row at least.
RESIDENT = 6
LEAST = 12


@triton.jit
def _page(
    queries: tl.tensor, weights: tl.tensor, pages_ptr: tl.tensor, table_ptr: tl.tensor,
    out_ptr: tl.tensor, page: tl.tensor, blocks: tl.tensor, HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Score the 64 keys of one page of a row."""
    PAGE_BYTES: tl.constexpr = 64 * (WIDTH + 4)
    at_ptr = pages_ptr + tl.load(table_ptr + page).to(tl.int64) * PAGE_BYTES
    line, column = tl.arange(0, 64), tl.arange(0, WIDTH)
    codes = tl.load(at_ptr + line[:, None] * WIDTH + column[None, :])
    scales = tl.load((at_ptr + 64 * WIDTH).to(tl.pointer_type(tl.float32)) + line)
    keys = fp8_operand(codes)
    scores = weighed_scores(keys, scales, queries, weights, 1, HEADS, 64)
    block = page * 64 + line
    tl.store(out_ptr + block[:, None] + tl.arange(0, 1)[None, :], scores, (block < blocks)[:, None])


@triton.jit
def _kernel(
    q_ptr: tl.tensor, weights_ptr: tl.tensor, pages_ptr: tl.tensor, table_ptr: tl.tensor,
    table_stride: tl.tensor, blocks_ptr: tl.tensor, out_ptr: tl.tensor, columns: tl.tensor,
    HEADS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1)
    step = tl.num_programs(1)
    blocks = tl.minimum(tl.load(blocks_ptr + row), columns)
    count = tl.cdiv(blocks, 64)
    if first < count:
        head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
        at = q_ptr + row * (HEADS * WIDTH) + head[:, None] * WIDTH + column[None, :]
        queries = fp8_operand(tl.load(at))
        weights = tl.load(weights_ptr + row * HEADS + head)
        table_ptr += row * table_stride
        out_ptr += row * columns
        if INTERPRETED:
            # The interpreter counts no loop whose bounds are computed.
            while first < count:
                _page(
                    queries, weights, pages_ptr, table_ptr, out_ptr, first, blocks, HEADS, WIDTH
                )  # fmt: skip
                first += step
        else:
            for page in range(first, count, step):
                _page(queries, weights, pages_ptr, table_ptr, out_ptr, page, blocks, HEADS, WIDTH)


def paged_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    page_table: torch.Tensor,
    blocks: torch.Tensor,
    columns: int,
    plan: "LogitsPlan | None",
) -> torch.Tensor:
    """Score blocks; see `jit_kernels.paged_logits.paged_logits`."""
    rows, heads, width = q.shape
    out = torch.empty((rows, columns), dtype=torch.float32, device=q.device)
    programs = max(LEAST, triton.cdiv(RESIDENT * _processors(q.device), rows))
    _kernel[(rows, min(programs, triton.cdiv(columns, layout.page_rows)))](
        *(q.view(torch.uint8), weights, pages, page_table, page_table.stride(0)),
        *(blocks.contiguous(), out, columns),
        HEADS=heads,
        WIDTH=width,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
