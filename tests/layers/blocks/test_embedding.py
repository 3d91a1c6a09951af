"""The table of token rows."""

import pytest
import torch

from layers.blocks.embedding import Embedding
from layers.blocks.hyper_connection import BlockResult
from layers.parallel.ranks import Dealt, OneRank, Ranks, Undealt
from layers.weights.part import Part
from tests.testing.compare import assert_same_bits
from tests.testing.thread_ranks import in_ranks

CPU = torch.device("cpu")
TABLE = torch.randn(12, 4).bfloat16()


def table_of(ranks: Ranks) -> Embedding:
    """Return the rows of TABLE that a rank holds."""
    vocab = ranks.shares.vocabulary(len(TABLE))
    made = Embedding(vocab, 4, name="embed", dtype=torch.bfloat16, device=CPU)
    made.weight.copy_(TABLE[vocab.part])
    return made


def test_every_stream_begins_with_the_row_of_its_token() -> None:
    table = table_of(OneRank())
    ((name, weight),) = table.named_weights()
    assert isinstance(weight, torch.Tensor)
    ids = torch.tensor([3, 3, 8])

    rows, streams, shares = table.streams(ids, 4, Undealt(OneRank())).take()

    assert name == "embed.weight"
    assert_same_bits(rows, weight[ids])
    begun = BlockResult(rows, streams, shares).mixed()
    assert_same_bits(begun, weight[ids].unsqueeze(1).repeat(1, 4, 1))


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_hold_some_rows_each_begin_with_the_rows_of_all(world: int) -> None:
    """Each rank's rows are there, its first and its last too."""
    ids = torch.tensor([*range(len(TABLE)), 0, 5, 5])

    found = in_ranks(world, lambda ranks: table_of(ranks).streams(ids, 4, Undealt(ranks)).take()[0])

    for rows in found:
        assert_same_bits(rows, TABLE[ids])


def test_each_rank_begins_with_the_rows_of_its_tokens() -> None:
    ids = torch.tensor([3, 11, 0, 7, 6])

    found = in_ranks(
        2, lambda ranks: table_of(ranks).streams(ids, 4, Dealt(ranks, len(ids))).take()
    )

    for (rows, streams, shares), mine in zip(found, (ids[:3], ids[3:]), strict=True):
        assert_same_bits(rows, TABLE[mine])
        begun = BlockResult(rows, streams, shares).mixed()
        assert_same_bits(begun, TABLE[mine].unsqueeze(1).repeat(1, 4, 1))


def test_a_rank_names_its_rows_as_a_part_of_the_table() -> None:
    """Files hold the whole table."""

    def part(ranks: Ranks) -> object:
        ((_, weight),) = table_of(ranks).named_weights()
        return weight

    for rank, weight in enumerate(in_ranks(2, part)):
        assert isinstance(weight, Part)
        assert weight.shape == (12, 4)
        assert weight.cut == (slice(6 * rank, 6 * rank + 6), slice(0, 4))
