"""What a prefill chunk attends: which records make its workspace, which of them a token sees.

The workspace of a layer is, row after row within each part,

    [ n * (window - 1) keys before the chunks | T keys of the chunks | blocks of all rows ]
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.decode_indices import PageSizes
from jit_kernels.registry import Backend, select
from jit_kernels.sparse_prefill import KEY_TILE

__all__ = ["BlockList", "prefill_index", "prefill_slots"]

_MODULE = "jit_kernels.prefill_indices"


def _selected(op: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    return select(
        op,
        [
            Backend("triton", f"{_MODULE}.triton_backend:{op}", why_no_triton, "cuda"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_prefill_slots = _selected("prefill_slots")
_prefill_index = _selected("prefill_index")


@dataclass(frozen=True, slots=True)
class BlockList:
    """Blocks of a ratio that all rows see, one after the other.

    ratio  positions in a block
    base   [n] int64   entry of each row's block 0
    count  entries in all
    """

    ratio: int
    base: torch.Tensor
    count: int


def prefill_slots(
    chunk_start: torch.Tensor,
    chunk_len: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    *,
    window_from: torch.Tensor,
    sizes: PageSizes,
    blocks: tuple[BlockList, ...],
) -> tuple[torch.Tensor, ...]:
    """Return the slots of what a chunk finds in the pools, in one launch.

    chunk_start, chunk_len, window_from  [n] int64   as in a forward batch
    page_table  [n, P] int32   full pages through the chunk's end
    window      [n, W] int32   SWA pages before the chunk
    blocks      at most two; a row lists blocks 0 .. (chunk_start + chunk_len) / ratio

    Returns (SWA slots [n * (window - 1)] int32 of the positions before each chunk, -1 where none
    is to be read; then full-page slots [count] int32 of each list). Raises ShapeError.
    """
    rows = chunk_start.shape[0]
    vectors = {"chunk_start": chunk_start, "chunk_len": chunk_len, "window_from": window_from}
    vectors |= {f"blocks of {part.ratio}": part.base for part in blocks}
    for name, vector in vectors.items():
        check_shape(name, vector, rows)
        check_dtype(name, vector, torch.int64)
    for name, table in {"page_table": page_table, "window": window}.items():
        check_shape(name, table, rows, None)
        check_dtype(name, table, torch.int32)
    if len(blocks) > 2 or any(sizes.page % part.ratio for part in blocks):
        ratios = [part.ratio for part in blocks]
        raise ShapeError(f"blocks of {ratios} in pages of {sizes.page}, expected two that fit")
    return _prefill_slots(chunk_start, chunk_len, page_table, window, window_from, sizes, blocks)


def prefill_index(
    position: torch.Tensor,
    row: torch.Tensor,
    chunk_start: torch.Tensor,
    *,
    window_from: torch.Tensor,
    window: int,
    columns: int,
    blocks: BlockList | None,
    chosen: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each token of a chunk attends, as `sparse_prefill` takes it.

    position, row             [T] int64   of each token; rows in order, positions ascending
    chunk_start, window_from  [n] int64
    window                    positions in a window
    columns                   most blocks that a token attends; 0: none
    blocks                    the list that lies in the workspace; None with no columns
    chosen                    block columns stay -1, for `place_blocks` to fill

    Returns (index [T, K] int32, lengths [T] int32), K being window + columns up to a multiple of
    128. Entry j < window is position t - window + 1 + j; entry window + j is the j-th block, all
    visible ones being listed unless they are `chosen`. Lengths count the window's entries and the
    blocks that are visible, at most `columns`. Raises ShapeError.
    """
    tokens, rows = position.shape[0], chunk_start.shape[0]
    vectors = {"position": position, "row": row, "chunk_start": chunk_start}
    for name, vector in (vectors | {"window_from": window_from}).items():
        check_shape(name, vector, tokens if name in ("position", "row") else rows)
        check_dtype(name, vector, torch.int64)
    if blocks is not None:
        check_shape("blocks", blocks.base, rows)
        check_dtype("blocks", blocks.base, torch.int64)
    if columns and blocks is None:
        raise ShapeError(f"{columns} columns of blocks, and no blocks")
    width = -(-(window + columns) // KEY_TILE) * KEY_TILE
    shape = (window, columns, width)
    index, lengths = _prefill_index(position, row, chunk_start, window_from, shape, blocks, chosen)
    return index, lengths
