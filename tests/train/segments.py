"""A stretch of queries against the keys they may see: masks and products in bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SEGMENT = 2048


@dataclass(frozen=True, slots=True)
class Segment:
    """Queries [first, last) of every row, and the blocks before `seen` that the last one sees."""

    first: int
    last: int
    seen: int

    def hidden_blocks(self, ratio: int, device: torch.device) -> Tensor:
        """Return [last - first, seen] bool: a query at t sees block w if w < (t + 1) // ratio."""
        t = torch.arange(self.first, self.last, device=device).unsqueeze(1)
        return torch.arange(self.seen, device=device) >= (t + 1) // ratio

    def hidden_near(self, window: int, device: torch.device) -> Tensor:
        """Return [last - first, 2 * window] bool for the keys of the chunk before and its own."""
        t = torch.arange(self.first, self.last, device=device).unsqueeze(1)
        start = (t // window - 1) * window
        s = start + torch.arange(2 * window, device=device)
        return (s < 0) | (s > t) | (s <= t - window)


def segments(length: int, ratio: int) -> Iterator[Segment]:
    """Cut rows of `length` into stretches; ratio 0 has no blocks."""
    for first in range(0, length, SEGMENT):
        last = min(first + SEGMENT, length)
        yield Segment(first, last, last // ratio if ratio else 0)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product in float32, whatever the operands' dtype."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.to(torch.float32), b.to(torch.float32))
