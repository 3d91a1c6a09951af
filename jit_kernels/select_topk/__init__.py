"""The k best visible blocks of each token."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_shape
from jit_kernels.registry import Backend, select

__all__ = ["select_topk"]

_select_topk: Callable[..., torch.Tensor] = select(
    "select_topk", [Backend("reference", "jit_kernels.select_topk.reference:select_topk")]
)


def select_topk(scores: torch.Tensor, visible: torch.Tensor, *, top_k: int) -> torch.Tensor:
    """Return the indices of the `top_k` highest scores of each row, ascending.

    scores   [T, B] float32   only [0, visible) of a row is looked at
    visible  [T] int64        at most B

    Returns [T, min(top_k, B)] int64: the higher score is chosen first, ties go to the lower
    index; rows with fewer visible scores are padded with -1 at the end. Raises ShapeError.
    """
    check_shape("visible", visible, scores.shape[0])
    return _select_topk(scores, visible, top_k)
