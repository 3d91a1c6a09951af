"""Linear layers over plain numbers: the reference of every other kind."""

from collections.abc import Mapping

import torch
from torch import Tensor

from jit_kernels.rope import rope
from jit_kernels.silu_mul import silu_mul
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from layers.blocks.norm import RmsNorm
from layers.linear.contract import Named, Rows
from layers.parallel.shares import Size, whole
from layers.weights.part import part_of

__all__ = ["PlainGroupedLinear", "PlainLinear"]


class PlainLinear:
    """A `Linear`, summed to float32.

    weight  [sum of rows, width]   the parts one after another
    """

    def __init__(
        self,
        width: Size,
        parts: Mapping[str, Size],
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight_dtype: torch.dtype | None = None,
        weight: Tensor | None = None,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order.

        dtype   of the rows, and of the weight unless `weight_dtype` is another
        weight  that is there already, another layer's
        """
        self._parts = {name: whole(rows) for name, rows in parts.items()}
        self._width, self._dtype = whole(width), dtype
        shape = (sum(rows.count for rows in self._parts.values()), self._width.count)
        if weight is None:
            weight = torch.zeros(shape, dtype=weight_dtype or dtype, device=device)
        self.weight = weight

    def rows(self, x: Tensor, norm: RmsNorm | None = None) -> Rows:
        """Return the rows, normed; see `Linear`."""
        return Rows(x if norm is None else norm(x, out_dtype=self._dtype))

    def gated(self, hidden: Tensor, limit: float) -> Rows:
        """Return gated rows; see `Linear`."""
        return Rows(silu_mul(hidden, limit=limit, out_dtype=self._dtype))

    def __call__(self, rows: Rows) -> Tensor:
        """Return `x @ weight.T` in float32; see `Linear`."""
        return tile_linear(rows.x, self.weight, out_dtype=torch.float32)

    def named_weights(self, prefix: str) -> Named:
        """Yield each part's rows of the stacked weight."""
        views = self.weight.split([rows.count for rows in self._parts.values()])
        for (name, rows), view in zip(self._parts.items(), views, strict=True):
            yield f"{prefix}{name}.weight", part_of(view, rows, self._width)


class PlainGroupedLinear:
    """A `GroupedLinear`.

    weight  [groups, rows, width]
    """

    def __init__(
        self,
        groups: Size,
        rows: int,
        width: int,
        *,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the weight, called `name` in files, stored there as [groups * rows, width]."""
        self._name, self._rows = name, whole(groups).times(rows)
        self.weight = torch.zeros((whole(groups).count, rows, width), dtype=dtype, device=device)

    def __call__(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """Turn back and multiply, in the dtype of `heads`; see `GroupedLinear`."""
        out = rope(heads, rotation, inverse=True)
        return tile_linear_grouped(out.view(len(heads), len(self.weight), -1), self.weight)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        weight = self.weight.flatten(0, 1)
        yield f"{prefix}{self._name}.weight", part_of(weight, self._rows, weight.shape[1])
