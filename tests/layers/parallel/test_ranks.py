"""Exchanges of ranks: what each gets, and in which order numbers are summed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.ordered_sum import ordered_sum
from layers.parallel.ranks import HostRanks, OneRank, Ranks
from layers.parallel.shares import Shares
from tests.testing.compare import assert_same_bits
from tests.testing.rank_processes import in_processes
from tests.testing.thread_ranks import in_ranks

# In the order of ranks 1; in the other one 0.
ORDERED = (1e8, -1e8, 1.0, 0.0)
# 259 rounds to 260; rounded after each addition the sum stays at 256.
SMALL = (256.0, 1.0, 1.0, 1.0)

# Of a step: one for all ranks, shares of unequal and of equal size.
TOKENS = (1, 7, 8)


class GivenRanks(HostRanks):
    """A rank that is given what the others have."""

    def __init__(self, parts: tuple[float, ...]) -> None:
        super().__init__(Shares(0, len(parts)))
        self.parts = parts

    def _all(self, part: Tensor) -> list[Tensor]:
        return [torch.full_like(part, number) for number in self.parts]


def test_sums_are_taken_in_the_order_of_ranks() -> None:
    own = torch.zeros(1)

    assert GivenRanks(ORDERED).all_reduce(own) == 1.0
    assert GivenRanks(ORDERED[::-1]).all_reduce(own) == 0.0


def test_sums_are_rounded_once() -> None:
    total = GivenRanks(SMALL).all_reduce(torch.zeros(1).bfloat16())

    assert total.dtype == torch.bfloat16
    assert total == 260.0


def parts_of(rank: int) -> dict[str, Tensor]:
    """Return what a rank gives."""
    generator = torch.Generator().manual_seed(rank)
    plain = torch.randn(3, 5, generator=generator)
    return {"float32": plain, "bfloat16": plain.bfloat16(), "strided": plain.T}


def exchange(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """Run in each process: all exchanges of `HostRanks`."""
    del device
    return exchanged(HostRanks(Shares(rank, world)))


def exchanged(ranks: Ranks) -> dict[str, Any]:
    """Return what the exchanges of one rank give, as lists."""
    given = parts_of(ranks.shares.rank)
    sums = {name: ranks.all_reduce(part).float().tolist() for name, part in given.items()}
    wide = ranks.gathered(given["bfloat16"]).float().tolist()
    return {
        "sums": sums,
        "gathered": wide,
        "least": ranks.least(7 - 3 * ranks.shares.rank),
        "traded": traded(ranks, torch.device("cpu")),
        "dealt": {str(tokens): dealt(ranks, tokens) for tokens in TOKENS},
    }


def dealt(ranks: Ranks, tokens: int) -> list[list[list[float]]]:
    """Return the sums of a rank's tokens, its own part of them, and all ranks' sums."""
    deal, partial = ranks.deal(tokens, 3), tokens_of(ranks.shares.rank, tokens)
    mine = deal.summed(partial)
    return [mine.tolist(), deal.mine(partial).tolist(), deal.every(mine).tolist()]


def traded(ranks: Ranks, device: torch.device) -> list[list[int]]:
    """Return what a rank gets of others, each of which has a row for it, two, three or none."""
    rank, every = ranks.shares.rank, range(ranks.shares.world)
    rows = torch.cat([rows_for(rank, other) for other in every]).to(device)
    given = [len(rows_for(rank, other)) for other in every]
    taken = [len(rows_for(other, rank)) for other in every]
    return ranks.traded(rows, given, taken).tolist()


def rows_for(giver: int, taker: int) -> Tensor:
    """Return what one rank has for another, bytes that only these two have."""
    count = (3 * giver + taker) % 4
    return (torch.arange(2 * count).view(count, 2) + 32 * giver + 8 * taker).to(torch.uint8)


def check_traded(found: list[dict[str, Any]]) -> None:
    """Hold what ranks got from others against what those had for them."""
    for rank, got in enumerate(found):
        want = torch.cat([rows_for(giver, rank) for giver in range(len(found))])
        assert got["traded"] == want.tolist()


def tokens_of(rank: int, tokens: int) -> Tensor:
    """Return what a rank gives for each of so many tokens."""
    return torch.randn(tokens, 3, generator=torch.Generator().manual_seed(rank + 10 * tokens))


def check_dealt(found: list[dict[str, Any]], tokens: int) -> None:
    """Hold shares against the formula: together they are all tokens, in order."""
    given = [tokens_of(rank, tokens) for rank in range(len(found))]
    want = ordered_sum(torch.stack(given))
    shares: list[Tensor] = []
    for rank, got in enumerate(found):
        summed, own, every = (torch.tensor(one) for one in got["dealt"][str(tokens)])
        first = sum(map(len, shares)) if tokens > 1 else 0
        assert_same_bits(summed, want[first : first + len(summed)])
        assert_same_bits(own, given[rank][first : first + len(summed)])
        assert_same_bits(every, want)
        shares.append(summed)
    if tokens > 1:
        assert sum(map(len, shares)) == tokens


def check(found: list[dict[str, Any]]) -> None:
    """Hold what ranks got against the formula."""
    given = [parts_of(rank) for rank in range(len(found))]
    for got in found:
        for name in given[0]:
            want = ordered_sum(torch.stack([one[name] for one in given]))
            assert_same_bits(torch.tensor(got["sums"][name]).to(want.dtype), want)
        side_by_side = torch.cat([one["bfloat16"] for one in given], 1)
        assert_same_bits(torch.tensor(got["gathered"]).bfloat16(), side_by_side)
        assert got["least"] == 7 - 3 * (len(found) - 1)
    check_traded(found)
    for tokens in TOKENS:
        check_dealt(found, tokens)


def test_processes_exchange_what_they_have(tmp_path: Path) -> None:
    check(in_processes(2, "tests.layers.parallel.test_ranks:exchange", tmp_path))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_threads_that_stand_in_for_ranks_exchange_the_same(world: int) -> None:
    check(list(in_ranks(world, exchanged)))


def test_a_rank_that_fails_ends_the_others_of_its_threads() -> None:
    def fail(ranks: Ranks) -> int:
        if ranks.shares.rank == 1:
            raise ValueError("broken")
        return ranks.least(0)

    with pytest.raises((ValueError, RuntimeError)):
        in_ranks(2, fail)


def test_a_rank_alone_gets_what_it_gives() -> None:
    part, alone = torch.randn(3, 4), OneRank()

    assert alone.all_reduce(part) is part
    assert alone.gathered(part) is part
    assert alone.least(5) == 5
    assert alone.shares == Shares(0, 1)
