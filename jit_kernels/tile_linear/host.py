"""Matrix product in C: each element is one dot product, summed in the same order always."""

from functools import partial

import torch

from jit_kernels.host import MANY_ROWS, by_rows, function, rows_of

_tile_linear = function("tile_linear", "pipiipiiii")


def tile_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Return `x @ weight.T` in `out_dtype`; see `jit_kernels.tile_linear.tile_linear`."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32)
    _multiply(x, weight, out)
    return out if out_dtype is torch.float32 else out.to(out_dtype)


def tile_linear_grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.tile_linear.tile_linear_grouped`."""
    groups, columns, _ = weight.shape
    out = torch.empty((x.shape[0], groups * columns), dtype=torch.float32)
    for group in range(groups):
        _multiply(x[:, group], weight[group], out[:, group * columns : (group + 1) * columns])
    return out if x.dtype is torch.float32 else out.to(x.dtype)


def _multiply(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    x = rows_of(x)
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    x_at, x_stride, out_at, out_stride = x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0)
    weight_at, weight_stride = weight.data_ptr(), weight.stride(0)
    half = weight.dtype is torch.bfloat16
    columns, depth = weight.shape

    def multiply(first: int, last: int, left: int = 0, right: int = columns) -> None:
        _tile_linear(
            *(x_at + 4 * first * x_stride, x_stride),
            *(weight_at + left * weight_stride * weight.itemsize, weight_stride, half),
            *(out_at + 4 * (first * out_stride + left), out_stride),
            *(last - first, right - left, depth),
        )

    rows = x.shape[0]
    if rows < MANY_ROWS:
        nbytes = columns * depth * weight.itemsize
        by_rows(partial(multiply, 0, rows), columns, nbytes=nbytes)
    else:
        by_rows(multiply, rows)
