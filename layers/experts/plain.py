"""Routed experts over plain numbers: the reference of the other kind."""

from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.moe import moe
from layers.experts.contract import ExpertSizes
from layers.linear.contract import Named, Rows

__all__ = ["PlainExperts"]


class PlainExperts:
    """A `RoutedExperts`.

    gate_up  [experts, 2 * inner, d]   W1 rows, then W3 rows
    down     [experts, d, inner]       W2
    """

    def __init__(self, sizes: ExpertSizes, *, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the weights."""
        count, width, inner = sizes.count, sizes.width, sizes.inner
        self._first, self._limit = sizes.first, sizes.limit
        self._gate_up = torch.zeros((count, 2 * inner, width), dtype=dtype, device=device)
        self._down = torch.zeros((count, width, inner), dtype=dtype, device=device)

    def __call__(
        self,
        x: Tensor,
        rows: Rows,
        experts: Tensor,
        weights: Tensor,
        plus: Callable[[], Tensor],
    ) -> Tensor:
        """Return the sum, added in float32; see `RoutedExperts`."""
        del rows
        routed = moe(x, experts, weights, gate_up=self._gate_up, down=self._down, limit=self._limit)
        return (routed + plus()).to(x.dtype)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        inner = self._down.shape[2]
        for expert in range(self._down.shape[0]):
            name = f"{prefix}experts.{self._first + expert}."
            yield f"{name}w1.weight", self._gate_up[expert, :inner]
            yield f"{name}w3.weight", self._gate_up[expert, inner:]
            yield f"{name}w2.weight", self._down[expert]
