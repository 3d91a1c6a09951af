"""The k best visible blocks of each token."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_shape
from jit_kernels.cuda_device import why_no_nvcc
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["MAX_TOP_K", "select_topk"]

MAX_TOP_K = 2048

_select_topk: Callable[..., torch.Tensor] = select(
    "select_topk",
    [
        Backend("cuda", "jit_kernels.select_topk.cuda_backend:select_topk", why_no_nvcc, "cuda"),
        on_host("select_topk.host:select_topk"),
        Backend("reference", "jit_kernels.select_topk.reference:select_topk"),
    ],
)


def select_topk(scores: torch.Tensor, visible: torch.Tensor, *, top_k: int) -> torch.Tensor:
    """Return the indices of the `top_k` highest scores of each row, ascending.

    scores   [T, B] float32   only [0, visible) of a row is looked at
    visible  [T] int64        at most B
    top_k    at most 2048

    Returns [T, min(top_k, B)] int64: the higher score is chosen first, ties go to the lower
    index; rows with fewer visible scores are padded with -1 at the end. Raises ShapeError.
    """
    check_shape("visible", visible, scores.shape[0])
    if top_k > MAX_TOP_K:
        raise ShapeError(f"top_k is {top_k}, at most {MAX_TOP_K}")
    return _select_topk(scores, visible, top_k)
