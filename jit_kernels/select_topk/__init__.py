"""The k best visible blocks of each token, as they are or as slots of pages."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["MAX_TOP_K", "select_slots", "select_topk"]

MAX_TOP_K = 2048

_CUDA = "jit_kernels.select_topk.cuda_backend"
_REFERENCE = "jit_kernels.select_topk.reference"
_select_topk: Callable[..., torch.Tensor] = select(
    "select_topk",
    [
        Backend("cuda", f"{_CUDA}:select_topk", why_no_hopper, "cuda"),
        on_host("select_topk.host:select_topk"),
        Backend("reference", f"{_REFERENCE}:select_topk"),
    ],
)
_select_slots: Callable[..., None] = select(
    "select_slots",
    [
        Backend("cuda", f"{_CUDA}:select_slots", why_no_hopper, "cuda"),
        Backend("reference", f"{_REFERENCE}:select_slots"),
    ],
)


def select_topk(scores: torch.Tensor, visible: torch.Tensor, *, top_k: int) -> torch.Tensor:
    """Return the indices of the `top_k` highest scores of each row, ascending.

    scores   [T, B] float32   only [0, visible) of a row is looked at
    visible  [T] int64 or int32   at most B
    top_k    at most 2048

    Returns [T, min(top_k, B)] int64: the higher score is chosen first, ties go to the lower
    index; rows with fewer visible scores are padded with -1 at the end. Raises ShapeError.
    """
    _check(scores, visible, top_k)
    return _select_topk(scores, visible, top_k)


def select_slots(
    scores: torch.Tensor,
    visible: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    *,
    top_k: int,
    page_blocks: int,
) -> None:
    """Write the slots of the blocks that `select_topk` chooses, as `translate_blocks` does.

    scores, visible, top_k   as for `select_topk`
    page_table   [T, P] int32   page of each `page_blocks` blocks of a row, where they are visible
    out          [T, K] int32, K at least min(top_k, B), may be part of wider rows; columns after
                 what is chosen become -1
    page_blocks  blocks in a page: 64 of 4 positions in one of 256

    Raises ShapeError.
    """
    _check(scores, visible, top_k)
    rows, columns = scores.shape
    check_shape("page_table", page_table, rows, None)
    check_dtype("page_table", page_table, torch.int32)
    check_shape("out", out, rows, None)
    check_dtype("out", out, torch.int32)
    if out.shape[1] < min(top_k, columns) or out.stride(1) != 1:
        raise ShapeError(f"{min(top_k, columns)} slots a row do not fit out {list(out.shape)}")
    _select_slots(scores, visible, page_table, out, top_k, page_blocks)


def _check(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> None:
    check_shape("visible", visible, scores.shape[0])
    check_dtype("visible", visible, torch.int64, torch.int32)
    if top_k > MAX_TOP_K:
        raise ShapeError(f"top_k is {top_k}, at most {MAX_TOP_K}")
