"""Ranks with rows of their own: whose tokens experts see, and whose sums a rank gets."""

from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.ordered_sum import ordered_sum
from layers.parallel.own_rows import OwnRows, expert_tokens
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.shares import Shares
from tests.testing.compare import assert_same_bits
from tests.testing.thread_ranks import ThreadRanks, in_ranks

COUNTS = [3, 1, 5, 1]
_NO_MEETING: Any = None


def partial_of(rank: int, tokens: int) -> Tensor:
    """Return what a rank computes for each of so many tokens."""
    return torch.randn(tokens, 3, generator=torch.Generator().manual_seed(rank))


def exchanged(ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of a rank's own tokens, those of all ranks, and its part of them."""
    shares, counts = ranks.shares, COUNTS[: ranks.shares.world]
    deal = OwnRows(ranks, counts)
    mine = deal.summed(partial_of(shares.rank, sum(counts)))
    every = deal.every(mine)
    return mine, every, deal.mine(every)


@pytest.mark.parametrize("world", [2, 4])
def test_each_rank_gets_the_sums_of_its_tokens_and_all_of_all(world: int) -> None:
    counts = COUNTS[:world]
    parts = [partial_of(rank, sum(counts)) for rank in range(world)]
    want = ordered_sum(torch.stack(parts))

    found = in_ranks(world, exchanged, attention="data")

    for (mine, every, again), part in zip(found, want.split(counts), strict=True):
        assert_same_bits(mine, part)
        assert_same_bits(every, want)
        assert_same_bits(again, part)


def ids_of(ranks: Ranks) -> Tensor:
    """Return the tokens that pass a rank's experts, of as many tokens as its number and one."""
    rank, world = ranks.shares.rank, ranks.shares.world
    counts = [other + 1 for other in range(world)]
    return expert_tokens(ranks, torch.full((rank + 1,), rank), 8, counts).ids


def test_experts_see_the_tokens_of_all_ranks_in_their_order() -> None:
    for ids in in_ranks(4, ids_of, attention="data"):
        assert ids.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]


def test_ranks_that_share_rows_pass_the_same_tokens() -> None:
    ids = torch.arange(5)

    alone = expert_tokens(OneRank(), ids, 8)
    shared = in_ranks(2, lambda ranks: expert_tokens(ranks, ids, 8).ids)

    assert alone.ids is ids
    assert all(one is ids for one in shared)


@pytest.mark.parametrize("counts", [[2], [3, 3], [2, 0]])
def test_counts_that_do_not_fit_the_step_are_refused(counts: list[int]) -> None:
    ranks = ThreadRanks(Shares(0, 2, "data"), _NO_MEETING)

    with pytest.raises(ValueError, match="2 tokens of rank 0, and"):
        expert_tokens(ranks, torch.zeros(2, dtype=torch.int64), 8, counts)
