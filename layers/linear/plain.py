"""Linear layers over plain numbers: the reference of every other kind."""

from collections.abc import Mapping

import torch
from torch import Tensor

from jit_kernels.rope import rope
from jit_kernels.silu_mul import silu_mul
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from layers.blocks.norm import RmsNorm
from layers.linear.contract import Named, Rows

__all__ = ["PlainGroupedLinear", "PlainLinear"]


class PlainLinear:
    """A `Linear`, summed to float32.

    weight  [sum of rows, width]   the parts one after another
    """

    def __init__(
        self,
        width: int,
        parts: Mapping[str, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order.

        dtype         of the rows, and of the weight unless `weight_dtype` is another
        """
        self._parts, self._dtype = dict(parts), dtype
        shape = (sum(self._parts.values()), width)
        self.weight = torch.zeros(shape, dtype=weight_dtype or dtype, device=device)

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
        rows = self.weight.split(list(self._parts.values()))
        for name, view in zip(self._parts, rows, strict=True):
            yield f"{prefix}{name}.weight", view


class PlainGroupedLinear:
    """A `GroupedLinear`.

    weight  [groups, rows, width]
    """

    def __init__(
        self,
        groups: int,
        rows: int,
        width: int,
        *,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the weight, called `name` in files, stored there as [groups * rows, width]."""
        self._name = name
        self.weight = torch.zeros((groups, rows, width), dtype=dtype, device=device)

    def __call__(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """Turn back and multiply, in the dtype of `heads`; see `GroupedLinear`."""
        out = rope(heads, rotation, inverse=True)
        return tile_linear_grouped(out.view(len(heads), len(self.weight), -1), self.weight)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        yield f"{prefix}{self._name}.weight", self.weight.flatten(0, 1)
