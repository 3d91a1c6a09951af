"""Hyper-connections in C."""

import torch

from jit_kernels.host import by_rows, function, rows_of
from jit_kernels.hyper_connection.reference import in_turn
from jit_kernels.rms_norm.host import rms_norm

_mhc_pre = function("mhc_pre", "pppppiffppiii")
_mhc_post = function("mhc_post", "ppppiii")
_mhc_head = function("mhc_head", "pppppffpiii")


def mhc_pre_norm(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix streams into a block's input, norm it, and return it and the shares of the result."""
    tokens, count, width = streams.shape
    wide = rows_of(streams).contiguous()
    scratch = torch.empty((tokens, fn.shape[0]), dtype=torch.float32)
    mixed = torch.empty((tokens, width), dtype=torch.float32)
    shares = torch.empty((tokens, count + 1, count), dtype=torch.float32)
    weights_at = (fn.data_ptr(), base.data_ptr(), scale.data_ptr())
    x_at, scratch_at, mixed_at = wide.data_ptr(), scratch.data_ptr(), mixed.data_ptr()
    shares_at = shares.data_ptr()

    def mix(first: int, last: int) -> None:
        shift = 4 * first * count
        _mhc_pre(
            *(x_at + shift * width, *weights_at, scratch_at + shift * (2 + count)),
            *(iterations, norm_eps, hc_eps, mixed_at + 4 * first * width),
            *(shares_at + shift * (count + 1), last - first, count, width),
        )

    by_rows(mix, tokens)
    return rms_norm(mixed.to(streams.dtype), weight, norm_eps, streams.dtype), shares


def mhc_post(y: torch.Tensor, streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mix a block's result into the streams; see `jit_kernels.hyper_connection.mhc_post`."""
    tokens, count, width = streams.shape
    out = torch.empty((tokens, count, width), dtype=torch.float32)
    parts = [rows_of(part).contiguous() for part in (y, streams, shares)]
    y_at, x_at, shares_at = (part.data_ptr() for part in parts)
    out_at = out.data_ptr()

    def mix(first: int, last: int) -> None:
        shift = 4 * first * count
        _mhc_post(
            *(y_at + 4 * first * width, x_at + shift * width, shares_at + shift * (count + 1)),
            *(out_at + shift * width, last - first, count, width),
        )

    by_rows(mix, tokens)
    return out.to(streams.dtype)


mhc_post_pre_norm = in_turn(mhc_post, mhc_pre_norm)


def mhc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    norm_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """Mix streams into one; see `jit_kernels.hyper_connection.mhc_head`."""
    tokens, count, width = streams.shape
    wide = rows_of(streams).contiguous()
    scratch = torch.empty((tokens, count), dtype=torch.float32)
    out = torch.empty((tokens, width), dtype=torch.float32)
    _mhc_head(
        *(wide.data_ptr(), fn.contiguous().data_ptr(), base.data_ptr(), scale.data_ptr()),
        *(scratch.data_ptr(), norm_eps, hc_eps, out.data_ptr(), tokens, count, width),
    )
    return out.to(streams.dtype)
