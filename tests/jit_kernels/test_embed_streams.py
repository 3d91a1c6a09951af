"""Embedded tokens of several streams."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.embed_streams import embed_streams
from tests.testing.compare import assert_same_bits


def test_rows_are_those_of_the_tokens_and_all_that_a_stream_takes(device: torch.device) -> None:
    table, ids = torch.randn(7, 20).bfloat16(), torch.tensor([6, 0, 3, 3])

    rows, shares = embed_streams(ids, table, streams=3)

    assert_same_bits(rows, table[ids])
    assert_same_bits(shares, torch.cat((torch.zeros(3, 3), torch.ones(1, 3))).expand(4, -1, -1))


def test_ids_of_another_type_are_refused(device: torch.device) -> None:
    with pytest.raises(ShapeError, match="token_ids"):
        embed_streams(torch.zeros(2, dtype=torch.int32), torch.zeros(3, 4), streams=2)
