"""What a forward pass returns."""

import torch

from layers.steps.forward_batch import finite_rows


def test_a_row_is_finite_when_all_its_tokens_are() -> None:
    row = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    tokens = torch.tensor([True, True, False, True, False, True, True])

    finite = finite_rows(tokens, row, torch.tensor([2, 1, 3, 1]))

    assert finite.tolist() == [True, False, False, True]
