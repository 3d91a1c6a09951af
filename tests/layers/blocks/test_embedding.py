"""The table of token rows: embedding and head."""

import torch

from layers.blocks.embedding import VocabTable
from layers.blocks.hyper_connection import BlockResult
from tests.testing.compare import Bounds, assert_close, assert_same_bits

CPU = torch.device("cpu")


def test_rows_are_looked_up_and_logits_are_float32() -> None:
    table = VocabTable(9, 4, name="embed", dtype=torch.bfloat16, device=CPU)
    ((name, weight),) = table.named_weights()
    weight.copy_(torch.randn(9, 4))
    ids = torch.tensor([3, 3, 8])

    rows, streams, shares = table.embed(ids, streams=4).take()
    logits = table.logits(rows)

    assert name == "embed.weight"
    assert_same_bits(rows, weight[ids])
    begun = BlockResult(rows, streams, shares).mixed()
    assert_same_bits(begun, weight[ids].unsqueeze(1).repeat(1, 4, 1))
    assert logits.dtype == torch.float32
    assert_close(logits, rows.float() @ weight.float().T, Bounds(atol=1e-5))
