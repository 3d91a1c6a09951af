"""Masked logits: the very bits of the reference, and nothing else is written."""

import pytest
import torch

from jit_kernels.mask_logits import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

# Rows, rows with a mask, vocabulary.
CASES = with_large(
    [(1, 0, 5), (1, 1, 1), (3, 2, 97), (4, 4, 4096), (5, 1, 4097)],
    [(1, 1, 129_280), (64, 33, 129_280), (7, 7, 2**18), (300, 100, 5000)],
)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("rows", "masked", "vocab"), CASES)
def test_logits_are_those_of_the_reference(rows: int, masked: int, vocab: int, dense: bool) -> None:
    """Strange numbers stay where they are allowed; columns past the vocabulary are nobody's."""
    padded = torch.randn(rows, vocab + 3)
    padded[:, ::7] = torch.nan
    some = torch.randperm(rows)[:masked]
    masks = torch.randint(-(2**31), 2**31, (masked, -(-vocab // 32)), dtype=torch.int32)
    if dense:
        masks |= torch.randint(-(2**31), 2**31, masks.shape, dtype=torch.int32)
        masks[:, : masks.shape[1] // 2] = -1
    wanted = padded.clone()
    reference.mask_logits(wanted[:, :vocab], some, masks)

    triton_backend.mask_logits(padded[:, :vocab], some, masks)

    assert_same_bits(padded, wanted)
