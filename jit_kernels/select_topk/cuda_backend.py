"""Top-k in CUDA C++: scores read once, and what is chosen found by counting.

A short row is held in the registers of one block; long rows are streamed past a floor.

The sources are in `cuda`; they are compiled by nvcc at first use.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.checks import check_dtype
from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import processors
from jit_kernels.translate_blocks import translate_blocks

# Rows whose candidates are kept at a time: 33 KiB each.
_GROUP = 256
# Blocks that long rows are spread over, a multiprocessor.
BLOCKS = 2


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    rows, columns = scores.shape
    out = torch.empty((rows, min(top_k, columns)), dtype=torch.int64, device=scores.device)
    if out.numel():
        _run(scores, visible, out.shape[1], out)
    return out


def select_slots(
    scores: torch.Tensor,
    visible: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    top_k: int,
    page_blocks: int,
) -> None:
    """Write slots; see `jit_kernels.select_topk.select_slots`."""
    shift, top_k = page_blocks.bit_length() - 1, min(top_k, scores.shape[1])
    if page_blocks != 1 << shift or not top_k:
        blocks = select_topk(scores, visible, top_k)
        translate_blocks(blocks, page_table, out, page_blocks=page_blocks)
    elif out.numel():
        _run(scores, visible, top_k, out, page_table, shift)


def _run(
    scores: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
    out: torch.Tensor,
    page_table: torch.Tensor | None = None,
    shift: int = 0,
) -> None:
    check_dtype("scores", scores, torch.float32)
    check_dtype("visible", visible, torch.int64, torch.int32)
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    visible, pages = visible.contiguous(), (None, 0)
    if page_table is not None:
        page_table = page_table if page_table.stride(1) == 1 else page_table.contiguous()
        pages = page_table.data_ptr(), page_table.stride(0)
    library = _library()
    error = launched(
        scores.device,
        library.select_topk,
        *(scores.data_ptr(), scores.stride(0)),
        *(visible.data_ptr(), visible.dtype == torch.int64),
        *(out.data_ptr(), out.stride(0), out.shape[1], *pages, shift),
        *(*scores.shape, top_k, _GROUP, BLOCKS * processors(scores.device)),
        _scratch(scores.device).data_ptr(),
    )
    if error:
        raise RuntimeError(f"select_topk: {library.select_topk_words(error).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("select_topk", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.select_topk.argtypes = [
        *(pointer, wide, pointer, number, pointer, wide, number, pointer, wide, number),
        *(number, number, number, number, number, pointer, pointer),
    ]
    library.select_topk_row_bytes.restype = ctypes.c_longlong
    library.select_topk_words.restype = ctypes.c_char_p
    return library


@functools.cache
def _scratch(device: torch.device) -> torch.Tensor:
    """Return candidates of a group of rows; calls share a stream, and leave counts at zero."""
    size = _GROUP * _library().select_topk_row_bytes()
    return torch.zeros(size, dtype=torch.uint8, device=device)
