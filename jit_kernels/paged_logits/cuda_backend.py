"""Scores of decoding rows in CUDA C++; calls of very many rows go through DeepGEMM.

The sources are in `cuda`; nvcc compiles them at first use. Pages are dealt out evenly without a
schedule, and so many are under way at once that little but memory is waited for. A row has the same
bits from both kernels and from DeepGEMM: which of them scores it makes no difference.
"""

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import processors
from jit_kernels.paged_logits import deep_gemm_backend
from jit_kernels.paged_rows import PageLayout

if TYPE_CHECKING:
    from jit_kernels.paged_logits import LogitsPlan

# The kernel of few rows takes so many, with so many columns: a row of 2,048 blocks takes it 3.3 us
# and DeepGEMM 3.9, of 250,000 blocks 16.1 and 12.9 (H200).
FEW_ROWS = 8
FEW_COLUMNS = 1 << 15
# The streamed kernel takes the rest up to so many rows, whatever their length.
STREAMED_ROWS = 128
_HEADS, _WIDTH = 64, 128


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
    first_bytes = q.data_ptr(), weights.data_ptr(), pages.data_ptr()
    few = rows <= FEW_ROWS and columns <= FEW_COLUMNS
    fits = (few or rows <= STREAMED_ROWS) and (heads, width) == (_HEADS, _WIDTH)
    if not fits or any(first % 16 for first in first_bytes):
        return deep_gemm_backend.paged_logits(
            q, weights, pages, layout, page_table, blocks, columns, plan
        )
    out = torch.empty((rows, columns), dtype=torch.float32, device=q.device)
    blocks = blocks.contiguous()
    library = _library()
    error = launched(
        q.device,
        library.paged_logits_few_call if few else library.paged_logits_streamed_call,
        *(*first_bytes, pages.shape[0]),
        *(page_table.data_ptr(), page_table.stride(0), blocks.data_ptr(), out.data_ptr()),
        *(rows, columns, processors(q.device)),
    )
    if error:
        raise RuntimeError(f"paged_logits: {library.paged_logits_words(error).decode()}")
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("paged_logits", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    for entry in (library.paged_logits_few_call, library.paged_logits_streamed_call):
        entry.argtypes = [
            *(pointer, pointer, pointer, wide, pointer, wide, pointer, pointer),
            *(number, number, number, pointer),
        ]
    library.paged_logits_words.restype = ctypes.c_char_p
    return library
