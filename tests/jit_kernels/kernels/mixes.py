"""Inputs of hyper-connections, and what is held against them."""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["EPS", "Owed", "exact_post", "in_two_parts", "mix_all", "owed", "weights"]

EPS = {"norm_eps": 1e-6, "hc_eps": 1e-6}


class Owed(NamedTuple):
    """A block's result, the streams that it is owed to, and by which shares."""

    y: Tensor
    streams: Tensor
    shares: Tensor

    def first(self, tokens: int) -> "Owed":
        """Return what there is of the first tokens."""
        return Owed(*(part[:tokens] for part in self))


def owed(tokens: int, count: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Owed:
    """Return results and streams whose mix is of order one."""
    y, streams = torch.randn(tokens, width).to(dtype), torch.randn(tokens, count, width).to(dtype)
    return Owed(y, streams, torch.rand(tokens, count + 1, count) * (2 / (count + 1)))


def weights(count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return fn, base and scale; logits are of order one."""
    rows = (2 + count) * count
    fn = torch.randn(rows, count * width) * (count * width) ** -0.5
    return fn, torch.randn(rows), torch.randn(3)


def in_two_parts(fn: Tensor) -> Tensor:
    """Return in float64 what two bfloat16 parts are of `fn`."""
    high = fn.bfloat16().float()
    return high.double() + (fn - high).bfloat16().double()


def exact_post(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> Tensor:
    """Return the shares of streams' results, [T, N], computed in float64."""
    count, flat = x.shape[1], x.double().flatten(1)
    logits = flat @ fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return 2 * torch.sigmoid(logits * scale[1] + base)[:, count : 2 * count].float()


def mix_all(
    backend: ModuleType, x: Owed, mine: tuple[Tensor, Tensor, Tensor], gain: Tensor
) -> list[Tensor]:
    """Return what `mhc_post_pre_norm` gives, and `mhc_head` of the streams before."""
    return [
        *backend.mhc_post_pre_norm(*x, *mine, gain, iterations=20, **EPS),
        backend.mhc_head(x.streams, mine[0][:4], mine[1][:4], mine[2][:1], **EPS),
    ]
