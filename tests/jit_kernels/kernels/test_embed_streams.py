"""Embedded tokens on the device."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.embed_streams import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

# Tokens, rows of the table, columns, streams.
SHAPES = with_large(
    [(0, 3, 8, 4), (1, 5, 20, 4), (3, 2, 1030, 1), (9, 40, 64, 3)],
    [(1, 129_280, 4096, 4), (8193, 129_280, 4096, 4), (128, 600, 7168, 4)],
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "vocab", "width", "streams"), SHAPES)
def test_streams_are_those_of_the_reference(
    tokens: int, vocab: int, width: int, streams: int, dtype: torch.dtype
) -> None:
    table = torch.randn(vocab, width).to(dtype)
    ids = torch.randint(vocab, (2 * tokens,))[::2]
    ids[:1] = vocab - 1

    got = triton_backend.embed_streams(ids, table, streams)

    for one, want in zip(got, reference.embed_streams(ids, table, streams), strict=True):
        assert_same_bits(one, want)


def test_a_token_that_is_not_in_the_table_is_no_number() -> None:
    rows, _ = triton_backend.embed_streams(torch.tensor([-1, 2, 1]), torch.ones(2, 5), 2)

    assert rows.isnan().all(-1).tolist() == [True, True, False]


def test_a_table_with_gaps_is_refused() -> None:
    with pytest.raises(ShapeError, match="not contiguous"):
        triton_backend.embed_streams(torch.tensor([0]), torch.ones(2, 6)[:, :4], 2)
