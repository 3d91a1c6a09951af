"""A linear layer of any kind, and a bias for each of its parts."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from layers.blocks.norm import RmsNorm
from layers.linear.contract import Linear, Named, Rows
from layers.parallel.shares import Size, whole
from layers.weights.part import part_of

__all__ = ["Bias", "BiasedLinear"]


class Bias:
    """What is added to a product.

    values  [sum of rows] float32   the parts one after another
    """

    def __init__(
        self, parts: Mapping[str, Size], device: torch.device, *, without: Collection[str] = ()
    ) -> None:
        """Allocate the biases of `parts`, name -> output rows, in order.

        without  parts that have none in files; theirs stays 0
        """
        self._parts = {name: whole(rows) for name, rows in parts.items()}
        self._without = without
        count = sum(rows.count for rows in self._parts.values())
        self.values = torch.zeros(count, dtype=torch.float32, device=device)

    def named_weights(self, prefix: str) -> Named:
        """Yield each part's bias under its name in files."""
        views = self.values.split([rows.count for rows in self._parts.values()])
        for (name, rows), view in zip(self._parts.items(), views, strict=True):
            if name not in self._without:
                yield f"{prefix}{name}.bias", part_of(view, rows)


class BiasedLinear:
    """A `Linear` whose results have a bias added, in float32."""

    def __init__(
        self,
        product: Linear,
        parts: Mapping[str, Size],
        device: torch.device,
        *,
        without: Collection[str] = (),
    ) -> None:
        """Take the product of `parts`, and allocate their biases; see `Bias`."""
        self._product, self._bias = product, Bias(parts, device, without=without)

    def rows(self, x: Tensor, norm: RmsNorm | None = None) -> Rows:
        """Return the rows, normed; see `Linear`."""
        return self._product.rows(x, norm)

    def gated(self, hidden: Tensor, limit: float) -> Rows:
        """Return gated rows; see `Linear`."""
        return self._product.gated(hidden, limit)

    def __call__(self, rows: Rows) -> Tensor:
        """Return the product and the bias in float32; see `Linear`."""
        return self._product(rows) + self._bias.values

    def named_weights(self, prefix: str) -> Named:
        """Yield the product's weights, then each part's bias."""
        yield from self._product.named_weights(prefix)
        yield from self._bias.named_weights(prefix)
