"""Linear layers over bfloat16 weights, summed to float32."""

from collections.abc import Mapping

import torch
from torch import Tensor

from jit_kernels.bf16_linear import bf16_linear, new_weight, note_weight
from jit_kernels.silu_mul import silu_mul
from layers.blocks.norm import RmsNorm
from layers.linear.contract import Named, Rows
from layers.parallel.shares import Size, whole
from layers.weights.part import part_of

__all__ = ["Bf16Linear"]


class Bf16Linear:
    """A `Linear` of bfloat16 rows; results are float32.

    weight  [sum of rows, width] bfloat16   the parts one after another
    """

    def __init__(
        self,
        width: Size,
        parts: Mapping[str, Size],
        *,
        device: torch.device,
        invariant: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order.

        invariant  a row's bits depend on its own numbers alone, not on how many rows there are
        weight     that is there already, another layer's
        """
        self._parts = {name: whole(rows) for name, rows in parts.items()}
        self._width, self._invariant = whole(width), invariant
        if weight is None:
            rows = sum(part.count for part in self._parts.values())
            weight = new_weight(rows, self._width.count, device, invariant=invariant)
        else:
            note_weight(weight, invariant=invariant)
        self.weight = weight

    def rows(self, x: Tensor, norm: RmsNorm | None = None) -> Rows:
        """Return the rows, normed; see `Linear`."""
        return Rows(x if norm is None else norm(x, out_dtype=torch.bfloat16))

    def gated(self, hidden: Tensor, limit: float) -> Rows:
        """Return gated rows; see `Linear`."""
        return Rows(silu_mul(hidden, limit=limit, out_dtype=torch.bfloat16))

    def __call__(self, rows: Rows) -> Tensor:
        """Return `x @ weight.T` in float32; see `Linear`."""
        return bf16_linear(rows.x, self.weight, invariant=self._invariant)

    def named_weights(self, prefix: str) -> Named:
        """Yield each part's rows of the stacked weight."""
        views = self.weight.split([rows.count for rows in self._parts.values()])
        for (name, rows), view in zip(self._parts.items(), views, strict=True):
            yield f"{prefix}{name}.weight", part_of(view, rows, self._width)
