"""Top-k in CUDA C++: a row spread over many blocks, its scores read once.

Few rows are held in registers while they are looked at; more are streamed past a floor.

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

# Rows whose candidates are kept at a time: 33 KiB each.
_GROUP = 256
# Blocks that long rows are spread over, a multiprocessor.
BLOCKS = 2
# Up to so many rows are held by blocks of their own, if that takes their sizes; 0: never.
FEW_ROWS = 8


def select_topk(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """Choose indices; see `jit_kernels.select_topk.select_topk`."""
    check_dtype("scores", scores, torch.float32)
    check_dtype("visible", visible, torch.int64)
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    rows, columns = scores.shape
    top_k = min(top_k, columns)
    out = torch.empty((rows, top_k), dtype=torch.int64, device=scores.device)
    if not out.numel():
        return out
    library = _library()
    error = launched(
        scores.device,
        library.select_topk,
        *(scores.data_ptr(), scores.stride(0), visible.contiguous().data_ptr(), out.data_ptr()),
        *(rows, columns, top_k, _GROUP, BLOCKS * processors(scores.device), FEW_ROWS),
        _scratch(scores.device).data_ptr(),
    )
    if error:
        raise RuntimeError(f"select_topk: {library.select_topk_words(error).decode()}")
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("select_topk", Path(__file__).parent / "cuda")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.select_topk.argtypes = [
        *(pointer, ctypes.c_longlong, pointer, pointer),
        *(number, number, number, number, number, number, pointer, pointer),
    ]
    library.select_topk_row_bytes.restype = ctypes.c_longlong
    library.select_topk_words.restype = ctypes.c_char_p
    return library


@functools.cache
def _scratch(device: torch.device) -> torch.Tensor:
    """Return candidates of a group of rows; calls share a stream, and leave counts at zero."""
    size = _GROUP * _library().select_topk_row_bytes()
    return torch.zeros(size, dtype=torch.uint8, device=device)
