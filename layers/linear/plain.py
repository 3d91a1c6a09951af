"""Linear layers without bias, several named weights stacked into one product."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from jit_kernels.tile_linear import tile_linear, tile_linear_grouped

__all__ = ["GroupedLinear", "Linear"]


class Linear:
    """One matrix product whose output rows belong to one or more named weights.

    weight  [sum of rows, width]   the parts one after another
    """

    def __init__(
        self, width: int, parts: Mapping[str, int], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order."""
        self._parts = dict(parts)
        rows = list(self._parts.values())
        self.weight = torch.zeros((sum(rows), width), dtype=dtype, device=device)

    def __call__(self, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        """Return `x @ weight.T`: [T, width] -> [T, sum of rows]."""
        return tile_linear(x, self.weight, out_dtype=out_dtype)

    def split(self, x: Tensor, *, out_dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """Return the product's columns part by part, as views of one tensor."""
        return self(x, out_dtype=out_dtype).split(list(self._parts.values()), 1)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield `prefix + name + ".weight"` and its rows of the stacked weight."""
        rows = self.weight.split(list(self._parts.values()))
        for name, view in zip(self._parts, rows, strict=True):
            yield f"{prefix}{name}.weight", view


class GroupedLinear:
    """One product per group of input channels.

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

    def __call__(self, x: Tensor) -> Tensor:
        """Return the groups' products side by side: [T, groups, width] -> [T, groups * rows]."""
        return tile_linear_grouped(x, self.weight)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weight under its name in files."""
        yield f"{prefix}{self._name}.weight", self.weight.flatten(0, 1)
