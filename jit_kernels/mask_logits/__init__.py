"""Logits of tokens that packed masks leave out: they become -inf, in place."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["WORD_BITS", "mask_logits"]

WORD_BITS = 32
_MODULE = "jit_kernels.mask_logits"
_mask_logits: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] = select(
    "mask_logits",
    [
        Backend("triton", f"{_MODULE}.triton_backend:mask_logits", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:mask_logits"),
    ],
)


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Set logits of `rows` to -inf where the row's mask has no bit for the token.

    logits  [n, V] float32, its columns adjacent; changed in place, other rows not
    rows    [c] int64 in [0, n), contiguous, each once
    masks   [c, ceil(V / 32)] int32, contiguous: bit k % 32 of word k // 32 for token k; bits past V
            may be anything

    Raises ShapeError. Source: the packed masks of xgrammar.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    check_shape("rows", rows, None)
    check_dense("rows", rows, torch.int64)
    check_shape("masks", masks, rows.shape[0], -(-logits.shape[1] // WORD_BITS))
    check_dense("masks", masks, torch.int32)
    _mask_logits(logits, rows, masks)
