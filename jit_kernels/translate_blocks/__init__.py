"""Compressed blocks that tokens chose, as places that attention reads."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["place_blocks", "translate_blocks"]

_MODULE = "jit_kernels.translate_blocks"


def _selected(op: str) -> Callable[..., None]:
    return select(
        op,
        [
            Backend("triton", f"{_MODULE}.triton_backend:{op}", why_no_triton, "cuda"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_translate_blocks = _selected("translate_blocks")
_place_blocks = _selected("place_blocks")


def translate_blocks(
    blocks: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    *,
    page_blocks: int,
    row: torch.Tensor | None = None,
) -> None:
    """Write the slots of chosen blocks: `page_table[row, b // page_blocks]` and place in it.

    blocks       [T, k] int32 or int64   blocks of the token's row; -1: none, which stays -1
    page_table   [n, P] int32
    out          [T, K] int32, K at least k, may be part of wider rows; columns after k become -1
    page_blocks  blocks in a full page: 64 of 4 positions in one of 256
    row          [T] int64   row of each token; None: token i is row i

    Raises ShapeError.
    """
    check_shape("page_table", page_table, blocks.shape[0] if row is None else None, None)
    check_dtype("page_table", page_table, torch.int32)
    _check(blocks, out, row)
    _translate_blocks(blocks, page_table, out, page_blocks, row)


def place_blocks(
    blocks: torch.Tensor, base: torch.Tensor, out: torch.Tensor, *, row: torch.Tensor
) -> None:
    """Write where chosen blocks lie in a workspace: `base[row] + b`.

    blocks  [T, k] int32 or int64   blocks of the token's row; -1: none, which stays -1
    base    [n] int64   place of each row's first block
    out     [T, K] int32, K at least k, may be part of wider rows; columns after k become -1
    row     [T] int64   row of each token

    Raises ShapeError.
    """
    check_shape("base", base, None)
    check_dtype("base", base, torch.int64)
    _check(blocks, out, row)
    _place_blocks(blocks, base, out, row)


def _check(blocks: torch.Tensor, out: torch.Tensor, row: torch.Tensor | None) -> None:
    tokens, chosen = blocks.shape
    check_dtype("blocks", blocks, torch.int32, torch.int64)
    check_shape("out", out, tokens, None)
    check_dtype("out", out, torch.int32)
    if out.shape[1] < chosen or out.stride(1) != 1 or blocks.stride(1) != 1:
        raise ShapeError(f"{list(blocks.shape)} blocks do not fit out {list(out.shape)}")
    if row is not None:
        check_shape("row", row, tokens)
        check_dtype("row", row, torch.int64)
