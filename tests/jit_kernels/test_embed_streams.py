"""Embedded tokens of several streams."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.embed_streams import embed_streams
from tests.testing.compare import assert_same_bits


def test_each_stream_begins_as_the_row_of_its_token(device: torch.device) -> None:
    table, ids = torch.randn(7, 20).bfloat16(), torch.tensor([6, 0, 3, 3])

    got = embed_streams(ids, table, streams=3)

    assert_same_bits(got, table[ids].unsqueeze(1).repeat(1, 3, 1))


def test_ids_of_another_type_are_refused(device: torch.device) -> None:
    with pytest.raises(ShapeError, match="token_ids"):
        embed_streams(torch.zeros(2, dtype=torch.int32), torch.zeros(3, 4), streams=2)
