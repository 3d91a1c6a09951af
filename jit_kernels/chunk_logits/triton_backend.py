"""Pages of indexer keys copied side by side in Triton: a program has a page."""

import torch
import triton
import triton.language as tl

from jit_kernels.paged_rows import PageLayout
from jit_kernels.triton_launch import prepared


@prepared
@triton.jit
def _gather_kernel(
    pages_ptr: tl.tensor, named_ptr: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    BYTES: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    nth = tl.program_id(0).to(tl.int64)
    page_ptr = pages_ptr + tl.load(named_ptr + nth).to(tl.int64) * PAGE
    byte, row = tl.arange(0, BYTES), tl.arange(0, ROWS)
    tl.store(codes_ptr + nth * BYTES + byte, tl.load(page_ptr + byte))
    scales = tl.load((page_ptr + BYTES).to(tl.pointer_type(tl.float32)) + row)
    tl.store(scales_ptr + nth * ROWS + row, scales)


def gather_key_pages(
    pages: torch.Tensor, named: torch.Tensor, layout: PageLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy pages; see `jit_kernels.chunk_logits.gather_key_pages`."""
    count, rows, width = named.shape[0], layout.page_rows, layout.data_bytes
    codes = torch.empty((count * rows, width), dtype=torch.float8_e4m3fn, device=pages.device)
    scales = torch.empty((count * rows,), dtype=torch.float32, device=pages.device)
    if count:
        _gather_kernel[(count,)](
            *(pages, named.contiguous(), codes.view(torch.uint8), scales),
            BYTES=rows * width,
            PAGE=layout.page_bytes,
            ROWS=rows,
            num_warps=4,
        )
    return codes, scales
