"""Root-mean-square norm with a weight."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.residual_norm import residual_norm
from jit_kernels.rms_norm import rms_norm

__all__ = ["RmsNorm"]


class RmsNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis; the weight is float32."""

    def __init__(self, width: int, *, eps: float, name: str, device: torch.device) -> None:
        """Allocate the weight, called `name` in files."""
        self.eps = eps
        self._name = name
        self.weight = torch.ones(width, dtype=torch.float32, device=device)

    def __call__(self, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        """Return the normed `x`, in its own dtype unless another is asked for."""
        return rms_norm(x, self.weight, eps=self.eps, out_dtype=out_dtype)

    def of_sum(self, h: Tensor, y: Tensor | None, *, out_dtype: torch.dtype) -> Tensor:
        """Add `y` to `h` in place, both [T, width] float32, and return the normed sum."""
        return residual_norm(h, y, self.weight, eps=self.eps, out_dtype=out_dtype)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weight under its name in files."""
        yield f"{prefix}{self._name}.weight", self.weight
