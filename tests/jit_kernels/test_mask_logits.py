"""Masked logits against a loop over tokens, and what is refused."""

import numpy as np
import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.mask_logits import mask_logits


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_a_token_is_left_out_where_its_bit_is_not_set(vocab: int, device: torch.device) -> None:
    rng = np.random.default_rng(vocab)
    logits = torch.randn(4, vocab)
    before = logits.clone()
    masks = rng.integers(-(2**31), 2**31, (2, -(-vocab // 32)), dtype=np.int32)

    mask_logits(logits, torch.tensor([3, 1]), torch.from_numpy(masks).to(device))

    for row, line in ((3, masks[0]), (1, masks[1])):
        for token in range(vocab):
            allowed = int(line[token // 32]) >> (token % 32) & 1
            wanted = before[row, token] if allowed else -torch.inf
            assert logits[row, token] == wanted
    assert logits[[0, 2]].equal(before[[0, 2]])


@pytest.mark.parametrize(
    ("rows", "masks"),
    [
        (torch.zeros(1, dtype=torch.int32), torch.zeros((1, 2), dtype=torch.int32)),
        (torch.zeros(1, dtype=torch.int64), torch.zeros((1, 2), dtype=torch.int64)),
        (torch.zeros(1, dtype=torch.int64), torch.zeros((1, 1), dtype=torch.int32)),
        (torch.zeros(2, dtype=torch.int64), torch.zeros((1, 2), dtype=torch.int32)),
        (torch.arange(4)[::2], torch.zeros((2, 2), dtype=torch.int32)),
        (torch.zeros(2, dtype=torch.int64), torch.zeros((2, 2), dtype=torch.int32).T),
    ],
)
def test_what_does_not_fit_is_refused(rows: torch.Tensor, masks: torch.Tensor) -> None:
    with pytest.raises(ShapeError):
        mask_logits(torch.zeros(3, 40), rows, masks)
