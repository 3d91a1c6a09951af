"""What a mixture of experts asks of its routed experts, whatever their weights are kept as."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from layers.linear.contract import Named, Rows
from layers.parallel.shares import Share

__all__ = ["ExpertForm", "ExpertSizes", "RoutedExperts"]

# In which forms routed experts are kept: 4 bits a number, 8, or twice.
ExpertForm = Literal["fp4", "fp8", "both"]


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The routed experts of a layer, and what of them this rank holds.

    chosen  experts of a token
    limit   clamp of the SwiGLU
    """

    experts: Share
    width: int
    inner: Share
    chosen: int
    limit: float

    @property
    def held(self) -> tuple[int, int, int]:
        """Experts, width and inner width of what this rank holds."""
        return self.experts.count, self.width, self.inner.count


class RoutedExperts(Protocol):
    """Experts of which each token passes a few."""

    def __call__(
        self,
        x: Tensor,
        rows: Rows,
        experts: Tensor,
        weights: Tensor,
        plus: Callable[[], Tensor],
    ) -> Tensor:
        """Return the weighted sum of the chosen experts and what `plus` gives, [T, d].

        x        [T, d] normed input
        rows     the same, as the shared expert's product takes it
        experts  [T, k] int64
        weights  [T, k] float32
        plus     returns what the shared expert gives, [T, d]; called when that is needed
        """
        ...

    def named_weights(self, prefix: str) -> Named:
        """Yield `prefix + "experts.N.w1.weight"` and so on, and where each goes."""
        ...
