"""Inputs of hyper-connections, and what is held against them."""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from jit_kernels.hyper_connection.mix_rows import by_products, pack, ranks_of
from tests.testing.compare import Bounds

__all__ = [
    "EPS",
    "Owed",
    "as_packed",
    "exact_post",
    "mix_all",
    "owed",
    "post_bounds",
    "weights",
]

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


def as_packed(fn: Tensor) -> Tensor:
    """Return the numbers that clusters take for those of `fn`, float64."""
    count = ranks_of(fn.shape[1] // 4)
    assert count is not None
    # Numbers are counted from 1: 0 fills up lines.
    places = by_products(torch.arange(1, fn.numel() + 1).view(fn.shape), count)
    ranks, multipliers, products, eights = places.shape[:4]
    words, groups = pack(fn, count), products * eights
    fours = groups // 4
    codes = words[:, :, : fours * 256].contiguous().view(torch.uint8)
    # Fours, bytes, lines, lanes of a line, groups, channels: two, and two that are eight further.
    codes = codes.view(ranks, multipliers, fours, 2, 8, 4, 4, 2, 2).permute(
        3, 0, 1, 2, 6, 4, 7, 5, 8
    )
    codes = codes.flatten(3, 4).reshape(2, *places.shape).double()
    units = words[:, :, fours * 256 :].contiguous().view(torch.bfloat16)[:, :, ::2]
    units = units.view(ranks, multipliers, 1, 8, 4, 1).transpose(3, 4)[:, :, :, :eights].double()
    numbers = (torch.where(codes < 128, codes + 128, 2 * codes) - 320) * units
    high, low = numbers[0], (numbers[1] * (43 / 8192)).bfloat16().double()
    taken = torch.zeros(fn.numel(), dtype=torch.float64)
    taken[places[places > 0] - 1] = (high + low)[places > 0]
    return taken.view(fn.shape)


def exact_post(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> Tensor:
    """Return the shares of streams' results, [T, N], computed in float64."""
    count, flat = x.shape[1], x.double().flatten(1)
    logits = flat @ fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return 2 * torch.sigmoid(logits * scale[1] + base)[:, count : 2 * count].float()


def post_bounds(dtype: torch.dtype) -> Bounds:
    """Return how close float32 sums come to exact ones.

    Of 24 seeds on an H200 the worst were 9e-7, and 5.3e-6 where tensor cores add up products of
    bfloat16 numbers, as they cut a sum's last bits off.
    """
    return Bounds(atol=2e-6) if dtype == torch.float32 else Bounds(atol=8e-6)


def mix_all(
    backend: ModuleType, x: Owed, mine: tuple[Tensor, Tensor, Tensor], gain: Tensor
) -> list[Tensor]:
    """Return what `mhc_post_pre_norm` gives, and `mhc_head` of the streams before."""
    return [
        *backend.mhc_post_pre_norm(*x, *mine, gain, iterations=20, **EPS),
        backend.mhc_head(x.streams, mine[0][:4], mine[1][:4], mine[2][:1], **EPS),
    ]
