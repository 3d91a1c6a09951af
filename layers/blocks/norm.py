"""Norms with a weight: by root-mean-square, and by mean and variance."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.residual_norm import residual_norm
from jit_kernels.rms_norm import rms_norm

__all__ = ["LayerNorm", "RmsNorm"]


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


class LayerNorm:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis, in float32."""

    def __init__(self, width: int, *, eps: float, name: str, device: torch.device) -> None:
        """Allocate the weight and the bias, called `name` in files."""
        self.eps = eps
        self._name = name
        self.weight = torch.ones(width, dtype=torch.float32, device=device)
        self.bias = torch.zeros(width, dtype=torch.float32, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normed `x`, [..., width] float32; a row's bits depend on that row alone."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield weight and bias under their names in files."""
        yield f"{prefix}{self._name}.weight", self.weight
        yield f"{prefix}{self._name}.bias", self.bias
