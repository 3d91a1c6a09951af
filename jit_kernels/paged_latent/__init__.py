"""Attention of heads that all read one bfloat16 record a position, in pages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dense, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.paged_gqa import PagedRows, check_rows
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_flash_mla

__all__ = ["LatentPlan", "paged_latent"]

_MODULE = "jit_kernels.paged_latent"
_OTHERS = [
    Backend("triton", f"{_MODULE}.triton_backend:paged_latent", why_no_triton, "cuda"),
    Backend("reference", f"{_MODULE}.reference:paged_latent"),
]
_FLASH_MLA = Backend(
    "flash_mla", f"{_MODULE}.flash_mla_backend:paged_latent", why_no_flash_mla, "cuda"
)
_paged_latent: Callable[..., torch.Tensor] = select("paged_latent", [_FLASH_MLA, *_OTHERS])
_paged_latent_invariant: Callable[..., torch.Tensor] = select("paged_latent_invariant", _OTHERS)


@dataclass(slots=True, eq=False)
class LatentPlan:
    """What the calls of one step share, whose rows and heads are the same.

    The first fills it by launches of its own, which are part of a CUDA graph that is being
    captured. So a plan is made inside the capture, and never outlives its step or graph.
    """

    held: dict[str, Any] = field(default_factory=dict[str, Any])


def paged_latent(
    q: torch.Tensor,
    records: torch.Tensor,
    rows: PagedRows,
    *,
    values: int,
    scale: float,
    plan: LatentPlan | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `softmax(scale * q . record) @ record[:values]` over positions up to each token's own.

    q          [T, H, D] bfloat16, contiguous
    records    [U, P, D] bfloat16, contiguous; P a multiple of 64. Behind a row's last token there
               may be any finite numbers
    values     channels that are read as the value, the first ones
    plan       shared by the calls of a step; None: this call is the only one
    invariant  a token's bits depend on what it reads alone, whatever the other tokens and rows

    Returns [T, H, values] bfloat16; zeros for a row that reads nothing. Nothing waits for the
    device. Raises ShapeError.
    """
    tokens, _, width = q.shape
    check_dense("q", q, torch.bfloat16)
    check_shape("records", records, None, None, width)
    check_dense("records", records, torch.bfloat16)
    if records.shape[1] % 64 or not 0 < values < width:
        raise ShapeError(f"{values} of {width} channels, in pages of {records.shape[1]} positions")
    check_rows(rows, tokens)
    if invariant:
        return _paged_latent_invariant(q, records, rows, values, scale, None)
    return _paged_latent(q, records, rows, values, scale, plan or LatentPlan())
