"""Weights asked for before their turn, while small steps leave the device's memory idle."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jit_kernels.prefetch_weights import prefetch_weights
from layers.fused.side_stream import FEW_TOKENS, SideStream

__all__ = ["WeightPrefetch"]

# More tokens keep the memory busy by themselves; 0: never.
MOST_TOKENS = FEW_TOKENS


class WeightPrefetch:
    """Asks the cache for weights beside what runs, captured in a CUDA graph as a branch."""

    def __init__(self, device: torch.device) -> None:
        """Make a stream for it, on a CUDA device."""
        self._side = SideStream(device)

    def __call__(self, tokens: int, weights: Sequence[Tensor]) -> None:
        """Ask for weights once all that was launched so far is done, in a step of few tokens."""
        if 0 < tokens <= MOST_TOKENS and weights:
            with self._side.beside(tokens):
                prefetch_weights(weights)

    def join(self) -> None:
        """End the branch, as the end of a graph needs."""
        self._side.join()
