"""The door of ordered sums."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.ordered_sum import ordered_sum
from tests.testing.compare import assert_same_bits


def test_sums_are_rounded_once_and_taken_in_order() -> None:
    small = torch.tensor([[256.0], [1.0], [1.0], [1.0]]).bfloat16()
    huge = torch.tensor([[1e8], [-1e8], [1.0]])

    assert_same_bits(ordered_sum(small), torch.tensor([260.0]).bfloat16())
    assert ordered_sum(huge) == 1.0
    assert ordered_sum(huge.flip(0)) == 0.0


@pytest.mark.parametrize(
    "parts", [torch.zeros(()), torch.zeros(0, 3), torch.zeros(2, 3, 4).transpose(1, 2)]
)
def test_parts_that_do_not_lie_one_after_another_are_refused(parts: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="contiguous"):
        ordered_sum(parts)


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ShapeError, match="float32 or bfloat16"):
        ordered_sum(torch.zeros(2, 3, dtype=torch.float16))
