"""Routed experts over plain numbers, on a GPU over bfloat16: the reference of the other kind."""

from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.moe import moe
from layers.experts.contract import ExpertSizes
from layers.linear.contract import Named, Rows
from layers.weights.part import part_of

__all__ = ["PlainExperts"]


class PlainExperts:
    """A `RoutedExperts`.

    gate_up  [experts, 2 * inner, d]   W1 rows, then W3 rows
    down     [experts, d, inner]       W2
    """

    def __init__(
        self,
        sizes: ExpertSizes,
        *,
        dtype: torch.dtype,
        device: torch.device,
        names: tuple[str, str, str] = ("w1", "w3", "w2"),
        invariant: bool = False,
    ) -> None:
        """Allocate the weights.

        names      of gate, up and down projections in files
        invariant  a row's bits depend on its own numbers alone, on a GPU, too
        """
        count, width, inner = sizes.held
        self._names, self._invariant = names, invariant
        self._sizes, self._limit = sizes, sizes.limit
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
        """Return the sum in float32; see `RoutedExperts`."""
        del rows
        return self._sum(x, experts, weights, plus)

    def alone(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts, [T, d] float32; see `RoutedExperts`."""
        return self._sum(x, experts, weights, None)

    def _sum(
        self, x: Tensor, experts: Tensor, weights: Tensor, plus: Callable[[], Tensor] | None
    ) -> Tensor:
        return moe(
            x,
            experts,
            weights,
            gate_up=self._gate_up,
            down=self._down,
            limit=self._limit,
            invariant=self._invariant,
            plus=plus,
        )

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        width, inner = self._sizes.width, self._sizes.inner
        gate_name, up_name, down_name = self._names
        for expert in range(self._down.shape[0]):
            name = f"{prefix}experts.{self._sizes.experts.first + expert}."
            gate, up = self._gate_up[expert].chunk(2)
            yield f"{name}{gate_name}.weight", part_of(gate, inner, width)
            yield f"{name}{up_name}.weight", part_of(up, inner, width)
            yield f"{name}{down_name}.weight", part_of(self._down[expert], width, inner)
