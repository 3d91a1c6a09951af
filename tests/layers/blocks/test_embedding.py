"""The table of token rows."""

import torch

from layers.blocks.embedding import Embedding
from layers.blocks.hyper_connection import BlockResult
from tests.testing.compare import assert_same_bits

CPU = torch.device("cpu")


def test_every_stream_begins_with_the_row_of_its_token() -> None:
    table = Embedding(9, 4, name="embed", dtype=torch.bfloat16, device=CPU)
    ((name, weight),) = table.named_weights()
    weight.copy_(torch.randn(9, 4))
    ids = torch.tensor([3, 3, 8])

    rows, streams, shares = table.streams(ids, 4).take()

    assert name == "embed.weight"
    assert_same_bits(rows, weight[ids])
    begun = BlockResult(rows, streams, shares).mixed()
    assert_same_bits(begun, weight[ids].unsqueeze(1).repeat(1, 4, 1))
