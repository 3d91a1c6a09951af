"""A block's result mixed back into the streams in Triton: a program has channels of a token."""

import torch
import triton
import triton.language as tl

from jit_kernels.checks import ShapeError, check_dtype
from jit_kernels.device_numbers import narrow
from jit_kernels.device_order import await_kernels, early

__all__ = ["mhc_post"]

_MOST_STREAMS = 4
_BLOCK = 1024


@triton.jit
def _post_kernel(
    y_ptr: tl.tensor, x_ptr: tl.tensor, x_token: tl.tensor, x_stream: tl.tensor,
    shares_ptr: tl.tensor, out_ptr: tl.tensor, width: tl.tensor, N: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    await_kernels(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = x_ptr + token * x_token + column
    y = tl.load(y_ptr + token * width + column, mask=inside, other=0.0).to(tl.float32)
    x0 = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    x1 = tl.load(at + x_stream, mask=inside & (N > 1), other=0.0).to(tl.float32)
    x2 = tl.load(at + 2 * x_stream, mask=inside & (N > 2), other=0.0).to(tl.float32)
    x3 = tl.load(at + 3 * x_stream, mask=inside & (N > 3), other=0.0).to(tl.float32)
    shares = shares_ptr + token * (N + 1) * N
    for k in tl.static_range(N):
        mixed = tl.load(shares + k) * x0
        if N > 1:
            mixed += tl.load(shares + N + k) * x1
        if N > 2:
            mixed += tl.load(shares + 2 * N + k) * x2
        if N > 3:
            mixed += tl.load(shares + 3 * N + k) * x3
        mixed += tl.load(shares + N * N + k) * y
        result = narrow(mixed, out_ptr.dtype.element_ty)
        tl.store(out_ptr + (token * N + k) * width + column, result, mask=inside)


def mhc_post(y: torch.Tensor, streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mix a block's result into the streams; see `jit_kernels.hyper_connection.mhc_post`."""
    _check_streams(streams)
    tokens, count, width = streams.shape
    out = streams.new_empty((tokens, count, width))
    if not tokens:
        return out
    block = min(_BLOCK, triton.next_power_of_2(width))
    _post_kernel[(tokens, triton.cdiv(width, block))](
        y.contiguous(),
        streams,
        streams.stride(0),
        streams.stride(1),
        shares,
        out,
        width,
        N=count,
        BLOCK=block,
        num_warps=4,
        **early(),
    )
    return out


def _check_streams(streams: torch.Tensor) -> None:
    """Raise ShapeError unless the kernel takes these streams."""
    check_dtype("streams", streams, torch.float32, torch.bfloat16)
    if not 0 < streams.shape[1] <= _MOST_STREAMS:
        raise ShapeError(f"streams has {streams.shape[1]} streams, expected 1 to {_MOST_STREAMS}")
    if streams.stride(2) != 1:
        raise ShapeError("streams has channels apart, expected them side by side")
