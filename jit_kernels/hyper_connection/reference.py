"""Hyper-connections in plain torch; the Sinkhorn steps in numpy.

The matrices are 4 x 4 and the steps many: on such sizes torch's cost per call is the whole
cost, and numpy's is a fraction of it.
"""

import numpy as np
import torch

from jit_kernels.tile_linear.reference import tile_linear


def mhc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix streams into a block input; see `jit_kernels.hyper_connection.mhc_pre`."""
    count = streams.shape[1]
    gains = torch.cat((scale[:2], scale[2:].expand(count))).view(2 + count, 1)
    z = _logits(streams, fn, norm_eps).view(-1, 2 + count, count)
    z = z.mul_(gains).add_(base.view(2 + count, count))
    gates = _sigmoid(z[:, :2])
    mixing = _sinkhorn(torch.softmax(z[:, 2:], -1), iterations, hc_eps)
    mixed = _mix(streams, gates[:, 0] + hc_eps)
    return mixed, gates[:, 1] * 2.0, mixing


def mhc_post(
    y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, mixing: torch.Tensor
) -> torch.Tensor:
    """Mix a block's result into the streams; see `jit_kernels.hyper_connection.mhc_post`."""
    # A product of 4 rows has the same bits whatever the batch.
    mixed = torch.bmm(mixing.transpose(1, 2).contiguous(), streams.to(torch.float32))
    fresh = post.unsqueeze(2) * y.to(torch.float32).unsqueeze(1)
    return fresh.add_(mixed).to(streams.dtype)


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
    z = _logits(streams, fn, norm_eps).mul_(scale).add_(base)
    return _mix(streams, _sigmoid(z).add_(hc_eps))


def _logits(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    flat = streams.flatten(1).to(torch.float32)
    factor = flat.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return tile_linear(flat, fn, torch.float32).mul_(factor)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    # torch.sigmoid differs in its last bit between the vector part of a tensor and its tail.
    return x.neg().exp_().add_(1.0).reciprocal_()


def _mix(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # A sum of four is taken one after the other in every path of torch's reduction.
    return (weights.unsqueeze(2) * streams.to(torch.float32)).sum(1).to(streams.dtype)


def _sinkhorn(rows: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Return [T, N, N] whose columns, and nearly whose rows, sum to one."""
    # Tokens last: sums over N are then whole-array additions in a fixed order. With a single
    # token numpy would add along N in another order, so there are at least two.
    tokens = rows.shape[0]
    rows = rows.add_(eps) if tokens > 1 else rows.add_(eps).expand(2, -1, -1)
    a = rows.permute(1, 2, 0).contiguous().cpu().numpy()
    size, _, columns = a.shape
    row_sum = np.empty((size, 1, columns), np.float32)
    column_sum = np.empty((1, size, columns), np.float32)
    total, divide, start = np.add.reduce, np.divide, np.float32(eps)
    total(a, axis=0, out=column_sum, keepdims=True, initial=start)
    divide(a, column_sum, a)
    for _ in range(iterations - 1):
        total(a, axis=1, out=row_sum, keepdims=True, initial=start)
        divide(a, row_sum, a)
        total(a, axis=0, out=column_sum, keepdims=True, initial=start)
        divide(a, column_sum, a)
    return torch.from_numpy(a).to(rows.device).permute(2, 0, 1)[:tokens]
