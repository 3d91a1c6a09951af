"""Weights asked for ahead of time keep their numbers."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.prefetch_weights import prefetch_weights


def test_numbers_stay_what_they_are(device: torch.device) -> None:
    sizes, kinds = [(1,), (5, 7), (0, 3), (1 << 20,)], (torch.bfloat16, torch.uint8)
    for dtype in kinds:
        weights = [torch.randint(99, size, device=device).to(dtype) for size in sizes]
        before = [weight.clone() for weight in weights]
        for count in range(1, 5):
            prefetch_weights(weights[:count])
        prefetch_weights([weights[-1][3:]])
        assert all(map(torch.equal, weights, before))


def test_what_cannot_be_asked_for_is_refused() -> None:
    weight = torch.zeros(4, 4)

    with pytest.raises(ShapeError, match="0 weights"):
        prefetch_weights([])
    with pytest.raises(ShapeError, match="5 weights"):
        prefetch_weights([weight] * 5)
    with pytest.raises(ShapeError, match=r"weights\[1\] is not contiguous"):
        prefetch_weights([weight, weight.T[:2]])
