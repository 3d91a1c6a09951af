"""FlashMLA's split plans in one launch of CUDA C++, a block of threads a kind.

Two ways to divide, and the cheaper is taken. Either every row is cut into equal pieces of at most
so many tiles, one piece a processor. Or, where there are more rows than processors or pieces
would be too uneven, all rows lie end to end, each behind a few units for what it costs to begin
one, and are cut at equal distances; no processor then does more than one begin beyond that.

What things cost, in 128ths of the time that a tile takes, some 3 us, was chosen of six triples by
calls of 1 to 128 rows and 128 to 8,320 keys on an H100: for each part of the row that has most, and
for each part there is. So one row of 112 tiles is cut into 38 parts, not 112, and 64 rows of 10
tiles into halves, not into 8 and 2. Near the best the time hardly changes: the figures need not be
exact. More rows than it has threads are left to FlashMLA's planner.
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
from jit_kernels.paged_attention.split_plans import MOST_KINDS, RECORD_WORDS

if TYPE_CHECKING:
    from jit_kernels.paged_attention.split_plans import KeyCounts

# Tiles for which FlashMLA's own planner takes the beginning of a row.
BEGIN_TILES = 5
TILE_COST = 128
PART_COST = 8
ADD_COST = 3
# As in `splits/plan_splits.cu`.
MOST_ROWS = 512
_CALL = Struct("@PPiiiiiii" + "PPii" * MOST_KINDS)


def plan_splits(
    q: torch.Tensor, counts: Sequence["KeyCounts"], processors: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return records and splits; see `jit_kernels.paged_attention.split_plans.plan_splits`."""
    rows, kinds = q.shape[0], len(counts)
    if rows > MOST_ROWS:
        return None
    shape = (kinds, processors, RECORD_WORDS)
    records = torch.empty(shape, dtype=torch.int32, device=q.device)
    splits = torch.empty((kinds, rows + 1), dtype=torch.int32, device=q.device)
    keys = [field for nth in range(MOST_KINDS) for field in _fields(counts[min(nth, kinds - 1)])]
    packed = _CALL.pack(
        *(records.data_ptr(), splits.data_ptr(), rows, processors),
        *(BEGIN_TILES, TILE_COST, PART_COST, ADD_COST, kinds, *keys),
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
