"""Heads of queries, keys and values made of one product: keys and values go to their pages."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["HeadWeights", "gqa_heads"]

_MODULE = "jit_kernels.gqa_heads"
_gqa_heads: Callable[..., torch.Tensor] = select(
    "gqa_heads",
    [
        Backend("triton", f"{_MODULE}.triton_backend:gqa_heads", why_no_triton, "cuda"),
        on_host("gqa_heads.host:gqa_heads"),
        Backend("reference", f"{_MODULE}.reference:gqa_heads"),
    ],
)


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """What heads pass on their way. H heads of queries, KH of keys, of D channels.

    bias    [(H + 2 KH) D] float32, contiguous; None: nothing is added
    norms   weights of the norms over a head of queries and of keys, [D] float32; None: no norm
    eps     of the norms
    """

    bias: torch.Tensor | None
    norms: tuple[torch.Tensor, torch.Tensor] | None
    eps: float


def gqa_heads(
    made: torch.Tensor,
    rotation: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    weights: HeadWeights,
    *,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Add the bias, norm and turn queries and keys, store keys and values; return the queries.

    made       [T, (H + 2 KH) D] float32, contiguous   heads of queries, then keys, then values;
               may be mutated
    rotation   [T, 2, D / 2] float32, contiguous, as `rope_halves` takes it
    keys       [U, P, KH, D] float32 or bfloat16, contiguous; mutated
    values     like `keys`; mutated
    slots      [T] int64, contiguous   page * P + place of each token; where several tokens have
               the same one, any of them is kept
    out_dtype  float32 or bfloat16

    Returns [T, H, D]; a token's heads lie one after another. Everything is computed in float32 and
    rounded once. What is not finite is stored as 0: attention may multiply what lies in pages
    behind a row's last token by 0. Raises ShapeError.
    """
    groups, width = keys.shape[2:]
    tokens, columns = made.shape
    heads = columns // width - 2 * groups
    if heads < 1 or columns != (heads + 2 * groups) * width or heads % groups or width % 2:
        raise ShapeError(f"{columns} channels are no heads that share {groups} of {width}")
    check_dense("made", made, torch.float32)
    check_shape("rotation", rotation, tokens, 2, width // 2)
    check_dense("rotation", rotation, torch.float32)
    check_dense("keys", keys, torch.float32, torch.bfloat16)
    check_shape("values", values, *keys.shape)
    check_dense("values", values, keys.dtype)
    check_shape("slots", slots, tokens)
    check_dense("slots", slots, torch.int64)
    if weights.bias is not None:
        check_shape("bias", weights.bias, columns)
    for weight in weights.norms or ():
        check_shape("norm", weight, width)
        check_dtype("norm", weight, torch.float32)
    return _gqa_heads(made, rotation, keys, values, slots, weights, out_dtype)
