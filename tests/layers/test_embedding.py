"""The table of token rows: embedding and head."""

import torch

from layers.embedding import VocabTable
from tests.testing.compare import Bounds, assert_close, assert_same_bits

CPU = torch.device("cpu")


def test_rows_are_looked_up_and_logits_are_float32() -> None:
    table = VocabTable(9, 4, name="embed", dtype=torch.bfloat16, device=CPU)
    ((name, weight),) = table.named_weights()
    weight.copy_(torch.randn(9, 4))
    ids = torch.tensor([3, 3, 8])

    rows = table.embed(ids)
    logits = table.logits(rows)

    assert name == "embed.weight"
    assert_same_bits(rows, weight[ids])
    assert logits.dtype == torch.float32
    assert_close(logits, rows.float() @ weight.float().T, Bounds(atol=1e-5))
