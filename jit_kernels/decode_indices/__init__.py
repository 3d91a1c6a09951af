"""Where each decoding row reads and writes in this step, from its position and its tables.

With it comes what else follows from positions alone, so that one launch begins a step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["KEY_TILE", "DecodeIndices", "PageSizes", "decode_indices"]

KEY_TILE = 64

_MODULE = "jit_kernels.decode_indices"
_decode_indices: Callable[..., tuple[torch.Tensor, ...]] = select(
    "decode_indices",
    [
        Backend("triton", f"{_MODULE}.triton_backend:decode_indices", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:decode_indices"),
    ],
)


@dataclass(frozen=True, slots=True)
class PageSizes:
    """Positions in a full page (a multiple of 128), in an SWA page, in a window."""

    page: int
    swa_page: int
    window: int


@dataclass(frozen=True, slots=True)
class DecodeIndices:
    """Slots of B rows; position p of a row is the one that this step computes.

    window_slots   [B, W] int32  SWA slots of positions p - window + 1 .. p, columns added up to a
                   multiple of 64; -1: before 0 or not to be read
    swa_slot       [B] int64   where the key of p goes
    c4_slot        [B] int64   where the block of 4 goes that p completes; 0: it completes none
    c128_slot      [B] int64   where the block of 128 goes that p completes; 0: it completes none
    c4_blocks      [B] int32   blocks of 4 that p sees
    c128_lengths   [B] int32   blocks of 128 that p sees
    c128_slots     [B, C] int32   C128 slots of blocks 0, 1, ...; -1 from `c128_lengths` on
    c4_visible     [B] int64   `c4_blocks` once more
    c4_chosen      [B] int32   blocks of 4 that p attends: `top_k` at most
    rotations      [4, B, 2, R] float32   of p in layers without compression; of p, p - 3 and
                   p - 127 in layers with it: where blocks of 4 and of 128 begin that end at p
    """

    window_slots: torch.Tensor
    swa_slot: torch.Tensor
    c4_slot: torch.Tensor
    c128_slot: torch.Tensor
    c4_blocks: torch.Tensor
    c128_lengths: torch.Tensor
    c128_slots: torch.Tensor
    c4_visible: torch.Tensor
    c4_chosen: torch.Tensor
    rotations: torch.Tensor


def decode_indices(
    position: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    *,
    window_from: torch.Tensor | None,
    sizes: PageSizes,
    c128_columns: int,
    top_k: int = 0,
    angles: torch.Tensor | None = None,
) -> DecodeIndices:
    """Return where B rows read and write, each at one position.

    position      [B] int64   -1 for a row that only pads the batch: it reads nothing, and writes
                  slot 0 of each pool
    page_table    [B, P] int32   full page of each page of positions, through `position`
    window        [B, W] int32   SWA page of positions t with (t // swa_page) % W the column
    window_from   [B] int64   positions before it are not read from the window; None: 0
    c128_columns  most blocks of 128 that a row may see, rounded up to a multiple of 64; lengths
                  tell attention how few of them are there, so that a bound costs 4 bytes a column
                  and row, once a step
    top_k         most blocks of 4 that a row attends
    angles        [2, R] float32   of each channel for a position, in layers without and with
                  compression, as `jit_kernels.rope.rotations` takes them; None: R is 0

    One launch: it belongs at the start of a CUDA graph over fixed inputs. Raises ShapeError.
    """
    rows = position.shape[0]
    check_shape("position", position, None)
    check_shape("page_table", page_table, rows, None)
    check_shape("window", window, rows, None)
    check_dtype("position", position, torch.int64)
    check_dtype("page_table", page_table, torch.int32)
    check_dtype("window", window, torch.int32)
    if window_from is not None:
        check_shape("window_from", window_from, rows)
        check_dtype("window_from", window_from, torch.int64)
    if angles is None:
        angles = torch.empty((2, 0), dtype=torch.float32, device=position.device)
    check_shape("angles", angles, 2, None)
    check_dtype("angles", angles, torch.float32)
    if c128_columns % KEY_TILE:
        raise ShapeError(f"c128_columns is {c128_columns}, expected a multiple of {KEY_TILE}")
    if sizes.page % 128:
        raise ShapeError(f"pages of {sizes.page} positions hold no whole blocks of 128")
    if window.shape[1] * sizes.swa_page < sizes.window:
        raise ShapeError(f"{window.shape[1]} SWA pages hold no window of {sizes.window}")
    made = _decode_indices(
        position, page_table, window, window_from, sizes, c128_columns, top_k, angles
    )
    return DecodeIndices(*made)
