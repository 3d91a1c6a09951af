"""What follows attention in a layer: its contract, and the block without experts."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from layers.kinds import DecoderKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Linear, Named
from layers.linear.summed import SummedLinear
from layers.parallel.ranks import Ranks
from layers.parallel.shares import Size

__all__ = ["FeedForward", "Gated"]


class FeedForward(Protocol):
    """What follows attention in a layer."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result of the normed stream `x` [T, d], [T, d] float32."""
        ...

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        ...


class Gated:
    """SwiGLU; a `FeedForward`."""

    def __init__(
        self, width: int, inner: int, kinds: DecoderKinds, ranks: Ranks, *, bias: bool = False
    ) -> None:
        """Allocate the weights of `inner` channels between products."""
        share = ranks.shares.inner(inner, blocks=False)
        parts: Mapping[str, Size] = {"gate_proj": share, "up_proj": share}
        self._in: Linear = kinds.projection(width, parts)
        if bias:
            self._in = BiasedLinear(self._in, parts, kinds.device)
        self._out = SummedLinear(kinds, share, "down_proj", width, bias=bias, ranks=ranks)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        return self._out.of_gated(self._in(self._in.rows(x)))

    def part_of(self, x: Tensor) -> Tensor:
        """Return what this rank adds to the result, without the bias; `x` [T, d] is normed."""
        return self._out.part_of_gated(self._in(self._in.rows(x)))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._in.named_weights(prefix)
        yield from self._out.named_weights(prefix)
