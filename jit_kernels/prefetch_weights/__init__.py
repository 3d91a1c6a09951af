"""Weights brought into the cache of the device before they are multiplied by."""

from collections.abc import Callable, Sequence

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.registry import Backend, select

__all__ = ["MOST_WEIGHTS", "prefetch_weights"]

MOST_WEIGHTS = 4
_MODULE = "jit_kernels.prefetch_weights"
_prefetch_weights: Callable[..., None] = select(
    "prefetch_weights",
    [
        Backend("cuda", f"{_MODULE}.cuda_backend:prefetch_weights", why_no_hopper, "cuda"),
        Backend("reference", f"{_MODULE}.reference:prefetch_weights"),
    ],
)


def prefetch_weights(weights: Sequence[torch.Tensor]) -> None:
    """Ask the L2 cache for weights, and wait for nothing; numbers do not change.

    weights  1 to 4, contiguous, of any dtype, on one device; asked for in this order

    A few megabytes are worth it while the device's memory has little to do, as while rows are
    normed; what does not fit displaces what came before. Without a cache to ask it does nothing.
    Raises ShapeError.
    """
    if not 0 < len(weights) <= MOST_WEIGHTS:
        raise ShapeError(f"{len(weights)} weights, expected 1 to {MOST_WEIGHTS}")
    for nth, weight in enumerate(weights):
        if not weight.is_contiguous():
            raise ShapeError(f"weights[{nth}] is not contiguous")
    _prefetch_weights(weights[0], *weights[1:])
