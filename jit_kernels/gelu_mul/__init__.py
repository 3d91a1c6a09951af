"""A gate of GELU in its tanh form."""

from collections.abc import Callable

import torch

from jit_kernels.registry import Backend, select

__all__ = ["gelu_mul"]

_gelu_mul: Callable[..., torch.Tensor] = select(
    "gelu_mul", [Backend("reference", "jit_kernels.gelu_mul.reference:gelu_mul")]
)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `gelu(gate) * up`, GELU with the tanh approximation.

    gate_up  [R, 2 I] float32   gate channels, then up channels

    Returns [R, I] float32. A row's bits depend on its own numbers alone.
    """
    return _gelu_mul(gate_up)
