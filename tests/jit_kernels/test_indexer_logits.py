"""Scores of blocks."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_logits import indexer_logits
from tests.testing.compare import Bounds, assert_close, assert_same_bits


def case(
    lengths: list[int], slots: int, heads: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, weights, keys, row and visible; keys that nobody sees are NaN."""
    row = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    tokens = row.shape[0]
    visible = torch.randint(slots + 1, (tokens,))
    keys = torch.randn(len(lengths), slots, width)
    for i in range(len(lengths)):
        keys[i, int(visible[row == i].max()) :] = torch.nan
    return torch.randn(tokens, heads, width), torch.randn(tokens, heads), keys, row, visible


@pytest.mark.parametrize(
    ("lengths", "slots", "heads", "width"),
    [([1], 64, 1, 3), ([5], 128, 5, 32), ([3, 1, 7], 192, 16, 20), ([1] * 9, 64, 64, 16)],
)
def test_scores_equal_the_formula_and_hidden_blocks_are_minus_infinity(
    lengths: list[int], slots: int, heads: int, width: int
) -> None:
    q, weights, keys, row, visible = case(lengths, slots, heads, width)

    got = indexer_logits(q, weights, keys, row=row, visible=visible)

    products = torch.einsum("thc,tbc->tbh", q.double(), keys[row].double()).clamp(min=0)
    want = (products * weights.double().unsqueeze(1)).sum(-1)
    hidden = torch.arange(slots) >= visible.unsqueeze(1)
    assert_close(got, want.masked_fill(hidden, -torch.inf).float(), Bounds(atol=1e-4, rtol=1e-4))


@pytest.mark.parametrize("heads", [5, 16])
def test_a_token_has_the_same_bits_in_any_company(heads: int) -> None:
    q, weights, keys, row, visible = case([30, 1, 9], 128, heads, 24)
    whole = indexer_logits(q, weights, keys, row=row, visible=visible)

    for first, last in ((0, 1), (3, 20), (29, 31), (30, 40), (39, 40)):
        part = slice(first, last)
        rows = row[part].unique()
        alone = indexer_logits(
            q[part],
            weights[part],
            keys[rows],
            row=torch.searchsorted(rows, row[part]),
            visible=visible[part],
        )
        assert_same_bits(alone, whole[part])


def test_keys_that_are_no_whole_tiles_are_refused() -> None:
    q, weights, keys, row, visible = case([2], 64, 2, 4)
    with pytest.raises(ShapeError, match="multiple of 64"):
        indexer_logits(q, weights, keys[:, :60], row=row, visible=visible.clamp(max=60))
