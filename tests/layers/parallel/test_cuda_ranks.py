"""Exchanges of GPUs: the arithmetic with threads for ranks, and all of it on several GPUs."""

from pathlib import Path
from threading import local
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import layers.parallel.cuda_ranks as cuda_ranks
from jit_kernels.ordered_sum import ordered_sum
from jit_kernels.push_reduce import most_bytes
from layers.parallel.cuda_ranks import CudaRanks
from layers.parallel.own_rows import OwnRows
from layers.parallel.ranks import Dealt
from layers.parallel.shares import Shares
from tests.layers.parallel.test_ranks import check_traded, traded
from tests.testing.compare import assert_same_bits
from tests.testing.rank_processes import in_processes
from tests.testing.thread_ranks import ThreadRanks, in_ranks

# Numbers of one rank: what ranks divide, what they do not, nothing to vectorise.
SHAPES = ((3, 8), (5, 7), (1,), (64, 64))


class ThreadExchange:
    """What stands in for `torch.distributed`: exchanges of one thread among others."""

    def __init__(self, threads: ThreadRanks) -> None:
        self._threads = threads

    def all_gather_into_tensor(self, parts: Tensor, part: Tensor) -> None:
        """Write what all give into `parts` [world, ...]."""
        parts.copy_(torch.stack(self._threads._all(part)))

    def all_to_all_single(
        self,
        parts: Tensor,
        rows: Tensor,
        taken: list[int] | None = None,
        sent: list[int] | None = None,
    ) -> None:
        """Write what all give to this rank into `parts`, one after the other."""
        world, rank = self._threads.shares.world, self._threads.shares.rank
        sizes = self._threads._all(torch.tensor(sent or [len(rows) // world] * world))
        there = zip(self._threads._all(rows), sizes, strict=True)
        mine = [one.split(size.tolist())[rank] for one, size in there]
        assert taken in (None, [*map(len, mine)])
        parts.copy_(torch.cat(mine))

    def all_to_all(self, parts: list[Tensor], sent: list[Tensor]) -> None:
        """Write what each rank gives to all into its part."""
        assert all(one is sent[0] for one in sent)
        for part, rows in zip(parts, self._threads._all(sent[0]), strict=True):
            part.copy_(rows)


class EachThread:
    """Hands a call to the exchange of the thread that makes it."""

    mine = local()

    @classmethod
    def all_gather_into_tensor(cls, parts: Tensor, part: Tensor) -> None:
        """See `ThreadExchange`."""
        cls.mine.exchange.all_gather_into_tensor(parts, part)

    @classmethod
    def all_to_all_single(cls, parts: Tensor, rows: Tensor, *sizes: list[int]) -> None:
        """See `ThreadExchange`."""
        cls.mine.exchange.all_to_all_single(parts, rows, *sizes)

    @classmethod
    def all_to_all(cls, parts: list[Tensor], sent: list[Tensor]) -> None:
        """See `ThreadExchange`."""
        cls.mine.exchange.all_to_all(parts, sent)


class ThreadedCudaRanks(CudaRanks):
    """One whose exchanges are those of threads."""

    def __init__(self, threads: ThreadRanks) -> None:
        super().__init__(threads.shares, torch.device("cpu", threads.shares.rank), limit_s=1.0)
        self.exchange = ThreadExchange(threads)


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that cannot reach each other's memory."""
    reason = "device 0 cannot reach the memory of device 1"
    monkeypatch.setattr(cuda_ranks, "why_no_peers", lambda *_: reason)


def given(rank: int, shape: tuple[int, ...]) -> Tensor:
    """Return what a rank gives."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).bfloat16()


def assert_sums(found: dict[str, list[float]], world: int) -> None:
    """Hold the sums of one rank against the ordered float32 sums, to the bit."""
    for shape in SHAPES:
        want = ordered_sum(torch.stack([given(rank, shape) for rank in range(world)]))
        assert_same_bits(torch.tensor(found[str(shape)]).bfloat16(), want)


def exchanged(ranks: CudaRanks, device: torch.device) -> dict[str, Any]:
    """Return what all exchanges of one rank give, as lists."""
    rank, world = ranks.shares.rank, ranks.shares.world
    sums = {str(s): ranks.all_reduce(given(rank, s).to(device)).float().tolist() for s in SHAPES}
    wide = ranks.gathered(given(rank, (3, 4)).to(device)).float().tolist()
    return {
        "sums": sums,
        "gathered": wide,
        "least": ranks.least(7 - 3 * rank),
        "traded": traded(ranks, device),
        "dealt": dealt(ranks, device),
        "owned": [owned(ranks, device, counts) for counts in counts_of(world)],
    }


def counts_of(world: int) -> list[list[int]]:
    """Return rows of ranks: unequal, few of equal number, many of equal number."""
    many = most_bytes(world) // 6
    return [[1 + (5 * rank) % 7 for rank in range(world)], [2] * world, [many] * world]


def owned(ranks: CudaRanks, device: torch.device, counts: list[int]) -> bool:
    """Return whether sums of a rank's own rows, and all rows, are those of the formula."""
    rank, total = ranks.shares.rank, sum(counts)
    partial = [given(one, (total, 3)).to(device) for one in range(len(counts))]
    want, deal = ordered_sum(torch.stack(partial)), OwnRows(ranks, counts)
    mine = deal.summed(partial[rank])
    return torch.equal(mine, want.split(counts)[rank]) and torch.equal(deal.every(mine), want)


def dealt(ranks: CudaRanks, device: torch.device) -> list[bool]:
    """Return whether sums, shares and all together are those of the formula."""
    rank, world = ranks.shares.rank, ranks.shares.world
    many = many_tokens(world)
    partial = [given(one, (many, 3)).to(device) for one in range(world)]
    want, size = ordered_sum(torch.stack(partial)), -(-many // world)
    share = slice(size * rank, size * (rank + 1))
    deal = ranks.deal(many, 3)
    assert isinstance(deal, Dealt)
    mine = deal.summed(partial[rank])
    return [
        torch.equal(mine, want[share]),
        torch.equal(deal.mine(partial[rank]), partial[rank][share]),
        torch.equal(deal.every(mine), want),
    ]


def many_tokens(world: int) -> int:
    """Return so many tokens that ranks share them, and the last gets fewer."""
    return most_bytes(world) // 6 + world + 1


def check(found: list[dict[str, Any]]) -> None:
    """Hold what ranks got against formulas."""
    world = len(found)
    check_traded(found)
    wide = torch.cat([given(rank, (3, 4)) for rank in range(world)], 1)
    for got in found:
        assert_sums(got["sums"], world)
        assert got["dealt"] == [True] * 3
        assert got["owned"] == [True] * 3
        assert_same_bits(torch.tensor(got["gathered"]).bfloat16(), wide)
        assert got["least"] == 7 - 3 * (world - 1)


@pytest.mark.usefixtures("no_peers")
@pytest.mark.parametrize("world", [2, 4, 8])
def test_sums_of_what_others_send_are_ordered_float32_sums(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_ranks, "dist", EachThread)

    def one(threads: ThreadRanks) -> dict[str, Any]:
        ranks = ThreadedCudaRanks(threads)
        EachThread.mine.exchange = ranks.exchange
        return exchanged(ranks, torch.device("cpu"))

    check(list(in_ranks(world, one)))


@pytest.mark.usefixtures("no_peers")
def test_gpus_that_cannot_reach_each_other_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", logger="umbra.rank"):
        CudaRanks(Shares(0, 2), torch.device("cpu", 0), limit_s=1.0)

    assert "go through NCCL: device 0 cannot reach" in caplog.text


def exchange(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """Run in each process, on its GPU."""
    ranks = CudaRanks(Shares(rank, world), device, limit_s=30.0)
    big = torch.randn(1 << 22, device=device).bfloat16()
    parts = [torch.empty_like(big) for _ in range(world)]
    dist.all_gather(parts, big)
    same = torch.equal(ranks.all_reduce(big), ordered_sum(torch.stack(parts)))
    return exchanged(ranks, device) | {"big": same}


@pytest.mark.multi_gpu
@pytest.mark.parametrize("world", [2, 4, 8])
def test_gpus_exchange_what_they_have(world: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} GPUs")
    name = "tests.layers.parallel.test_cuda_ranks:exchange"

    found = in_processes(world, name, tmp_path, backend="nccl")

    check(found)
    assert all(got["big"] for got in found)
