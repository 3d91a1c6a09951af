"""Matrix product of activation rows and a weight, the same bits for a row in any company."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["tile_linear", "tile_linear_grouped"]

_tile_linear: Callable[..., torch.Tensor] = select(
    "tile_linear",
    [
        on_host("tile_linear.host:tile_linear"),
        Backend("reference", "jit_kernels.tile_linear.reference:tile_linear"),
    ],
)
_tile_linear_grouped: Callable[..., torch.Tensor] = select(
    "tile_linear_grouped",
    [
        on_host("tile_linear.host:tile_linear_grouped"),
        Backend("reference", "jit_kernels.tile_linear.reference:tile_linear_grouped"),
    ],
)


def tile_linear(
    x: torch.Tensor, weight: torch.Tensor, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return `x @ weight.T`, summed in float32, each row independent of the others to the bit.

    x          [R, K] float32 or bfloat16; R may be 0
    weight     [N, K] float32 or bfloat16
    out_dtype  dtype of the result, that of `x` by default

    Returns [R, N]. Raises ShapeError.
    """
    check_shape("x", x, None, weight.shape[1])
    return _tile_linear(x, weight, out_dtype or x.dtype)


def tile_linear_grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return each group's product beside the others: `x[:, g] @ weight[g].T` for every g.

    x       [R, G, K] float32 or bfloat16
    weight  [G, N, K] float32 or bfloat16

    Returns [R, G * N] in the dtype of x, with the promise of `tile_linear`. Raises ShapeError.
    """
    check_shape("x", x, None, weight.shape[0], weight.shape[2])
    return _tile_linear_grouped(x, weight)
