"""FlashMLA's split plans in one launch of CUDA C++, a block of threads a kind.

More rows than it has threads go through Triton, which divides them as this does; see
`device_splits_backend.py` for how and why.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.paged_attention import device_splits_backend
from jit_kernels.paged_attention.device_splits_backend import BEGIN_TILES, PART_COST, TILE_COST
from jit_kernels.paged_attention.split_plans import MOST_KINDS, RECORD_WORDS

if TYPE_CHECKING:
    from jit_kernels.paged_attention.split_plans import KeyCounts

MOST_ROWS = 512
_CALL = Struct("@PPiiiiii" + "PPii" * MOST_KINDS)


def plan_splits(
    q: torch.Tensor, counts: Sequence["KeyCounts"], processors: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records and splits; see `jit_kernels.paged_attention.split_plans.plan_splits`."""
    rows, kinds = q.shape[0], len(counts)
    if rows > MOST_ROWS:
        return device_splits_backend.plan_splits(q, counts, processors)
    shape = (kinds, processors, RECORD_WORDS)
    records = torch.empty(shape, dtype=torch.int32, device=q.device)
    splits = torch.empty((kinds, rows + 1), dtype=torch.int32, device=q.device)
    keys = [field for nth in range(MOST_KINDS) for field in _fields(counts[min(nth, kinds - 1)])]
    packed = _CALL.pack(
        *(records.data_ptr(), splits.data_ptr(), rows, processors),
        *(BEGIN_TILES, TILE_COST, PART_COST, kinds, *keys),
    )
    error = launched(q.device, _library().plan_splits_call, packed, len(packed))
    if error:
        raise RuntimeError(f"plan_splits: {_library().splits_words(error).decode()}")
    return records, splits


def _fields(counts: "KeyCounts") -> tuple[int, int, int, int]:
    """Return lengths, by address, and columns of both sets of keys."""
    window, extra = (
        0 if lengths is None else lengths.data_ptr()
        for lengths in (counts.lengths, counts.extra_lengths)
    )
    return window, extra, counts.columns, counts.extra_columns


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("plan_splits", Path(__file__).parent / "splits")
    library.plan_splits_call.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    library.splits_words.restype = ctypes.c_char_p
    return library
