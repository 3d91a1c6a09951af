"""Linear layers over fp8 weights in blocks of 128 x 128, as files hold them.

Where a layer is `invariant`, a row's bits depend on its own numbers alone, not on how many rows
there are.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from jit_kernels.fp8_linear import (
    BLOCK,
    fp8_linear,
    fp8_linear_grouped,
    fp8_linear_of,
    new_weight,
    rounds_rows,
)
from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.quant_fp8 import norm_quant, quantise_rows, silu_mul_quant
from layers.blocks.norm import RmsNorm
from layers.linear.contract import Named, Rows
from layers.parallel.shares import Size, whole
from layers.weights.part import part_of
from layers.weights.weight_target import Fp8Target

__all__ = ["Fp8GroupedLinear", "Fp8Linear"]


class Fp8Linear:
    """A `Linear` whose rows are rounded to e4m3, 128 channels at a time; results are bfloat16.

    weight  [sum of rows, width] float8_e4m3fn   the parts one after another
    scales  [sum of rows / 128, width / 128] float32
    """

    def __init__(
        self,
        width: Size,
        parts: Mapping[str, Size],
        *,
        device: torch.device,
        invariant: bool = False,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order.

        Raises ShapeError unless `width` and the rows of every part are multiples of 128.
        """
        self._parts = {name: whole(rows) for name, rows in parts.items()}
        self._width, self._invariant = whole(width), invariant
        self.weight, self.scales = new_weight(
            {name: rows.count for name, rows in self._parts.items()},
            self._width.count,
            device,
            invariant=invariant,
        )

    def rows(self, x: Tensor, norm: RmsNorm | None = None) -> Rows:
        """Return the rows; a product of few rows norms and rounds them itself; see `Linear`.

        Codes are made now, and so on the stream of this moment, whichever streams products run on.
        """
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        if not self._invariant and rounds_rows(x, weight):
            return Rows(x, weight, eps)
        rounded = quantise_rows(x) if weight is None else norm_quant(x, weight, eps=eps)
        return Rows(x, weight, eps, rounded)

    def gated(self, hidden: Tensor, limit: float) -> Rows:
        """Return gated rows, rounded; see `Linear`."""
        return Rows(hidden, rounded=silu_mul_quant(hidden, limit=limit))

    def __call__(self, rows: Rows) -> Tensor:
        """Return the product in bfloat16; see `Linear`."""
        weight, invariant = (self.weight, self.scales), self._invariant
        if rows.rounded is not None:
            return fp8_linear(*rows.rounded, *weight, invariant=invariant)
        return fp8_linear_of(rows.x, *weight, norm=rows.norm, eps=rows.eps, invariant=invariant)

    def named_weights(self, prefix: str) -> Named:
        """Yield each part's rows of the stacked weight."""
        first = 0
        for name, rows in self._parts.items():
            last = first + rows.count
            blocks = slice(first // BLOCK, last // BLOCK)
            target = Fp8Target(self.weight[first:last], self.scales[blocks])
            yield f"{prefix}{name}.weight", part_of(target, rows, self._width)
            first = last


class Fp8GroupedLinear:
    """A `GroupedLinear`; heads are rounded to e4m3 once they are turned back.

    The published code multiplies them as bfloat16 (NETWORK.md, 7).

    weight  [groups, rows, width] float8_e4m3fn
    scales  [groups, rows / 128, width / 128] float32
    """

    def __init__(
        self,
        groups: Size,
        rows: int,
        width: int,
        *,
        name: str,
        device: torch.device,
        invariant: bool = False,
    ) -> None:
        """Allocate the weight, called `name` in files, stored there as [groups * rows, width].

        Raises ShapeError unless `rows` and `width` are multiples of 128.
        """
        self._name, self._groups, self._invariant = name, whole(groups), invariant
        self.weight, self.scales = new_weight(
            {name: rows}, width, device, groups=self._groups.count, invariant=invariant
        )

    def __call__(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """Turn back, round and multiply, in bfloat16; see `GroupedLinear`."""
        codes, scales = out_rope_quant(heads, rotation, groups=self._groups.count)
        weight, invariant = (self.weight, self.scales), self._invariant
        return fp8_linear_grouped(codes, scales, *weight, invariant=invariant).flatten(1)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        target = Fp8Target(self.weight.flatten(0, 1), self.scales.flatten(0, 1))
        rows, width = self.weight.shape[1:]
        yield f"{prefix}{self._name}.weight", part_of(target, self._groups.times(rows), width)
