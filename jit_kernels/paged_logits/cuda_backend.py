"""Scores of decoding rows in CUDA C++; calls of very many rows go through DeepGEMM.

The sources are in `cuda`; nvcc compiles them at first use. Pages are dealt out evenly without a
schedule, and so many are under way at once that little but memory is waited for. They are asked for
before the launch before has ended, which may write queries and their weights, but neither pages nor
what names them. A row has the same bits as from DeepGEMM: which of the two scores it makes no
difference. Where DeepGEMM takes 3.5, 5.2 and 12.0 us for one row of 2,048, 32,768 and 225,000
blocks, this takes 2.0, 3.6 and 9.8, and 12.6 for 128 rows of 2,048 where DeepGEMM takes 13.7 (H200,
with 16 places for pages, all asked for before the queries; `tests/bench/LOG.md` has steps since).
"""

import ctypes
import functools
from collections.abc import Sequence
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

# Rows of a call at most, whatever their length.
MOST_ROWS = 128
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
    if not _takes(rows, heads, width) or any(first % 16 for first in first_bytes):
        return deep_gemm_backend.paged_logits(
            q, weights, pages, layout, page_table, blocks, columns, plan
        )
    out = torch.empty((rows, columns), dtype=torch.float32, device=q.device)
    blocks = blocks.contiguous()
    error = launched(
        q.device,
        _library().paged_logits_call,
        *(*first_bytes, pages.shape[0]),
        *(page_table.data_ptr(), page_table.stride(0), blocks.data_ptr(), out.data_ptr()),
        *(rows, columns, processors(q.device)),
    )
    if error:
        raise RuntimeError(f"paged_logits: {_library().paged_logits_words(error).decode()}")
    return out


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make the calls that are left to DeepGEMM for so many rows; see `jit_kernels.vendor_calls`.

    sizes  heads and channels of a query
    """
    if not _takes(rows, *sizes):
        deep_gemm_backend.rehearse(rows, sizes, mixed=mixed, device=device)


def _takes(rows: int, heads: int, width: int) -> bool:
    return rows <= MOST_ROWS and (heads, width) == (_HEADS, _WIDTH)


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("paged_logits", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.paged_logits_call.argtypes = [
        *(pointer, pointer, pointer, wide, pointer, wide, pointer, pointer),
        *(number, number, number, pointer),
    ]
    library.paged_logits_words.restype = ctypes.c_char_p
    return library
