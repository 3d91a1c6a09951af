"""A linear layer whose width ranks share: the sum of their products, then a bias."""

import math

import torch
from torch import Tensor

from layers.kinds import DecoderKinds
from layers.linear.contract import Named
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size

__all__ = ["SummedLinear", "over_ranks"]


def over_ranks(partial: Tensor, ranks: Ranks, dtype: torch.dtype) -> Tensor:
    """Return the sum of all ranks' `partial`, float32.

    dtype  of the numbers that ranks send each other
    """
    if ranks.shares.world == 1:
        return partial
    return ranks.all_reduce(partial.to(dtype)).to(torch.float32)


class SummedLinear:
    """One named weight, multiplied to float32 and summed over ranks."""

    def __init__(
        self,
        kinds: DecoderKinds,
        width: Size,
        name: str,
        rows: int,
        *,
        ranks: Ranks,
        bias: bool = False,
    ) -> None:
        """Allocate the weight `name` of [rows, width], and a bias if there is one."""
        self._product = kinds.projection(width, {name: rows})
        self._name, self._ranks, self._dtype = name, ranks, kinds.dtype
        self._bias = torch.zeros(rows, device=kinds.device) if bias else None

    def of_rows(self, x: Tensor) -> Tensor:
        """Return the result of `x` [T, width], [T, rows] float32."""
        return self._summed(self._product(self._product.rows(x)))

    def of_gated(self, hidden: Tensor) -> Tensor:
        """Return the result of SwiGLU of `hidden` [T, 2 width], [T, rows] float32."""
        return self._summed(self.part_of_gated(hidden))

    def part_of_gated(self, hidden: Tensor) -> Tensor:
        """Return what this rank adds to `of_gated`, without the bias."""
        return self._product(self._product.gated(hidden, math.inf))

    def _summed(self, partial: Tensor) -> Tensor:
        y = over_ranks(partial, self._ranks, self._dtype)
        return y if self._bias is None else y + self._bias

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._product.named_weights(prefix)
        if self._bias is not None:
            yield f"{prefix}{self._name}.bias", self._bias
