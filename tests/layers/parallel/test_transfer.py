"""Units copied between ranks: all at once, each to where it is wanted."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.models.deepseek_v4.pools import KvPools
from layers.models.page_pools import PagePools
from layers.models.unit_views import read_units, write_units
from layers.parallel.cuda_ranks import CudaRanks
from layers.parallel.ranks import HostRanks, OneRank, Ranks
from layers.parallel.shares import Shares
from layers.parallel.transfer import transfer_units
from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.transfer import Transfer, UnitIds
from tests.testing.rank_processes import in_processes
from tests.testing.thread_ranks import in_ranks

CPU = torch.device("cpu")

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
# What two ranks give each other, each into the units that it gives.
SWAPPED = (
    UnitIds(range(1, 21), [3, 1, 30], [5, 12]),
    UnitIds(range(40, 20, -1), [7, 8, 2], [6, 10]),
)


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


def v4_pools_of(rank: int, device: torch.device) -> KvPools:
    """Return pools of random bytes, others in each rank, with every kind of tensor."""
    spec = PoolSpec(
        tree=TreeSpec(draft_tokens=1),
        layer_ratios=(0, 4, 128, 4, 128),
        head_dim=512,
        rope_dim=64,
        index_head_dim=128,
        record_format="fp8",
    )
    pools = KvPools(spec, PoolSizes(40, 30, states=12, live_states=4), device)
    generator = torch.Generator().manual_seed(rank)
    for tensor in pools.tensors().values():
        data = tensor.view(torch.uint8)
        data.copy_(torch.randint(256, data.shape, dtype=torch.uint8, generator=generator))
    return pools


def swapped_bits(ranks: Ranks, device: torch.device) -> dict[str, bool]:
    """Return which tensors of this rank are as wanted, once two ranks gave each other units.

    What is wanted is computed in host memory.
    """
    rank, (first, second) = ranks.shares.rank, SWAPPED
    pools = v4_pools_of(rank, device)
    transfer_units(
        ranks, pools.unit_views(), [Transfer(0, 1, first, second), Transfer(1, 0, second, first)]
    )

    source, target = (second, first) if rank == 0 else (first, second)
    want, other = (v4_pools_of(one, CPU) for one in (rank, 1 - rank))
    write_units(want.unit_views(), target, torch.cat(read_units(other.unit_views(), source)))
    return {
        name: torch.equal(tensor.cpu().view(torch.uint8), want.tensors()[name].view(torch.uint8))
        for name, tensor in pools.tensors().items()
    }


def on_gpu(rank: int, world: int, device: torch.device) -> dict[str, bool]:
    """Run in each process, on its GPU."""
    ranks = CudaRanks(Shares(rank, world, "data"), device, limit_s=30.0)
    # Twice: the first exchange connects the two.
    return {f"{name} {n}": same for n in "12" for name, same in swapped_bits(ranks, device).items()}


def on_host(rank: int, world: int, device: torch.device) -> dict[str, bool]:
    """Run in each process."""
    return swapped_bits(HostRanks(Shares(rank, world, "data")), device)


def test_ranks_have_the_bits_of_each_others_units() -> None:
    for found in in_ranks(2, lambda ranks: swapped_bits(ranks, CPU), attention="data"):
        assert found == dict.fromkeys(found, True)
        assert len(found) == 6


@pytest.mark.slow
def test_processes_have_the_bits_of_each_others_units(tmp_path: Path) -> None:
    for found in in_processes(2, "tests.layers.parallel.test_transfer:on_host", tmp_path):
        assert found == dict.fromkeys(found, True)


@pytest.mark.multi_gpu
def test_gpus_have_the_bits_of_each_others_units(tmp_path: Path) -> None:
    name = "tests.layers.parallel.test_transfer:on_gpu"

    for found in in_processes(2, name, tmp_path, backend="nccl"):
        assert found == dict.fromkeys(found, True)
        assert len(found) == 12
