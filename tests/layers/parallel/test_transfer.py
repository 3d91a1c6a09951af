"""Units copied between ranks: all at once, each to where it is wanted."""

import torch
from torch import Tensor

from layers.models.page_pools import PagePools
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.transfer import transfer_units
from mem_cache.transfer import Transfer, UnitIds
from tests.testing.thread_ranks import in_ranks

WORLD, PAGES = 4, 6
# Two ranks swap units, one gives to two, one is given to by two and twice by one of them; the last
# pair of the first rank has none.
TRANSFERS = [
    Transfer(0, 1, UnitIds([1, 2]), UnitIds([2, 3])),
    Transfer(1, 0, UnitIds([2, 3]), UnitIds([1, 2])),
    Transfer(0, 3, UnitIds([5]), UnitIds([5])),
    Transfer(1, 3, UnitIds([4, 1, 5]), UnitIds([1, 2, 3])),
    Transfer(0, 3, UnitIds([3]), UnitIds([4])),
]


def pools_of(rank: int) -> PagePools:
    """Return pools with other numbers in each rank."""
    generator = torch.Generator().manual_seed(rank)
    return PagePools({"keys": torch.randn(3, PAGES, 4, 2, generator=generator)})


def keys(pools: PagePools) -> Tensor:
    """Return the tensor of pools."""
    return pools.tensors()["keys"]


def test_sources_are_read_before_any_target_is_written() -> None:
    def moved(ranks: Ranks) -> PagePools:
        pools = pools_of(ranks.shares.rank)
        transfer_units(ranks, pools.unit_views(), TRANSFERS)
        return pools

    found = in_ranks(WORLD, moved, attention="data")

    before = [keys(pools_of(rank)) for rank in range(WORLD)]
    want = [numbers.clone() for numbers in before]
    for one in TRANSFERS:
        for source, target in zip(one.source.pages, one.target.pages, strict=True):
            want[one.taker][:, target] = before[one.giver][:, source]
    for pools, numbers in zip(found, want, strict=True):
        assert torch.equal(keys(pools), numbers)


def test_a_rank_alone_has_nobody_to_copy_from() -> None:
    pools = pools_of(0)
    transfer_units(OneRank(), pools.unit_views(), [])

    assert torch.equal(keys(pools), keys(pools_of(0)))
