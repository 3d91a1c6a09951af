"""The likeliest token of each row."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.likeliest import NOT_FINITE, likeliest


def test_ties_go_to_the_lower_id(device: torch.device) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [-1.0, -2.0, -1.0], [5.0, 5.0, 5.0]])

    assert likeliest(logits).tolist() == [1, 0, 0]


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_what_is_no_number_has_no_token(strange: float, device: torch.device) -> None:
    logits = torch.arange(12.0).view(3, 4)
    logits[1, 2] = strange

    assert likeliest(logits).tolist() == [3, NOT_FINITE, 3]


def test_ids_are_written_where_they_are_wanted(device: torch.device) -> None:
    room = torch.full((4,), 9)

    assert likeliest(torch.arange(12.0).view(3, 4), out=room[:3]) is not None
    assert room.tolist() == [3, 3, 3, 9]


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    with pytest.raises(ShapeError, match="logits"):
        likeliest(torch.zeros((1, 4), dtype=torch.bfloat16))
    for out in (torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.arange(4)[::2]):
        with pytest.raises(ShapeError, match="out"):
            likeliest(torch.zeros((2, 4)), out=out)
