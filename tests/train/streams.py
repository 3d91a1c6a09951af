"""mHC for training: the ops of `jit_kernels.hyper_connection` as chains that a compiler can fuse.

The reference multiplies in tiles of 16 rows, for bits that no batch changes; a gradient through
its broadcast weights would hold a copy of them per tile.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def mix_in(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a block's input [N, d], and what `mix_out` needs: [N, S] and [N, S, S].

    streams  [N, S, d]

    The other arguments are those of `jit_kernels.hyper_connection.mhc_post_pre_norm`.
    """
    count = streams.shape[1]
    gains = torch.cat((scale[:2], scale[2:].expand(count))).repeat_interleave(count)
    z = (_logits(streams, fn, norm_eps) * gains + base).unflatten(1, (2 + count, count))
    pre = torch.sigmoid(z[:, 0]) + hc_eps
    post = 2.0 * torch.sigmoid(z[:, 1])
    mixing = torch.softmax(z[:, 2:], -1) + hc_eps
    mixing = mixing / (mixing.sum(1, keepdim=True) + hc_eps)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(2, keepdim=True) + hc_eps)
        mixing = mixing / (mixing.sum(1, keepdim=True) + hc_eps)
    return _mix(streams, pre), post, mixing


def mix_out(y: Tensor, streams: Tensor, post: Tensor, mixing: Tensor) -> Tensor:
    """Return the streams [N, S, d] after a block computed `y` [N, d]."""
    wide = streams.to(torch.float32)
    mixed = (mixing.unsqueeze(3) * wide.unsqueeze(2)).sum(1)
    return (post.unsqueeze(2) * y.to(torch.float32).unsqueeze(1) + mixed).to(streams.dtype)


def mix_head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, hc_eps: float
) -> Tensor:
    """Mix the streams into one, [N, d]."""
    return _mix(streams, torch.sigmoid(_logits(streams, fn, norm_eps) * scale + base) + hc_eps)


def _logits(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    flat = streams.flatten(1).to(torch.float32)
    return F.linear(flat, fn) * (flat.square().mean(-1, keepdim=True) + eps).rsqrt()


def _mix(streams: Tensor, weights: Tensor) -> Tensor:
    return (weights.unsqueeze(2) * streams.to(torch.float32)).sum(1).to(streams.dtype)
