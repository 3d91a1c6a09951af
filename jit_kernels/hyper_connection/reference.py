"""Hyper-connections in plain torch."""

from collections.abc import Callable

import torch

from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.tile_linear.reference import tile_linear


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
    count = streams.shape[1]
    gains = torch.cat((scale[:2], scale[2:].expand(count))).view(2 + count, 1)
    z = _logits(streams, fn, norm_eps).view(-1, 2 + count, count)
    z = z * gains + base.view(2 + count, count)
    gates = _sigmoid(z[:, :2])
    mixing = _sinkhorn(torch.softmax(z[:, 2:], -1), iterations, hc_eps)
    mixed = _mix(streams, gates[:, 0] + hc_eps)
    shares = torch.cat((mixing, gates[:, 1:] * 2.0), 1)
    return rms_norm(mixed, weight, norm_eps, streams.dtype), shares


def mhc_post(y: torch.Tensor, streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mix a block's result into the streams; see `jit_kernels.hyper_connection.mhc_post`."""
    count = streams.shape[1]
    # A product of 4 rows has the same bits whatever the batch.
    mixing = shares[:, :count].transpose(1, 2).contiguous()
    mixed = torch.bmm(mixing, streams.to(torch.float32))
    fresh = shares[:, count].unsqueeze(2) * y.to(torch.float32).unsqueeze(1)
    return (fresh + mixed).to(streams.dtype)


def in_turn(
    post: Callable[..., torch.Tensor], pre_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return `mhc_post_pre_norm` as its two parts, one after the other."""

    def both(
        y: torch.Tensor,
        streams: torch.Tensor,
        shares: torch.Tensor,
        *weights: torch.Tensor,
        **constants: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        after = post(y, streams, shares)
        return after, *pre_norm(after, *weights, **constants)

    return both


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
    z = _logits(streams, fn, norm_eps) * scale + base
    return _mix(streams, _sigmoid(z) + hc_eps)


def _logits(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    flat = streams.flatten(1).to(torch.float32)
    factor = (flat.square().mean(-1, keepdim=True) + eps).rsqrt()
    return tile_linear(flat, fn, torch.float32) * factor


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    # torch.sigmoid differs in its last bit between the vector part of a tensor and its tail.
    return ((-x).exp() + 1.0).reciprocal()


def _mix(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return _sum(weights.unsqueeze(2) * streams.to(torch.float32), 1)[:, 0].to(streams.dtype)


def _sinkhorn(rows: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Return [T, N, N] whose columns, and nearly whose rows, sum to one."""
    a = rows + eps
    a = a / (_sum(a, 1) + eps)
    for _ in range(iterations - 1):
        a = a / (_sum(a, 2) + eps)
        a = a / (_sum(a, 1) + eps)
    return a


def _sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Sum over a short axis one after the other, which no batch changes; the axis stays."""
    parts = x.split(1, axis)
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result
