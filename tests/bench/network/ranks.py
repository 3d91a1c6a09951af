"""A network shared by several GPUs of one host: one process a GPU, which all measure at once."""

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from jit_kernels.push_reduce import most_bytes
from layers.parallel.cuda_ranks import CudaRanks
from layers.parallel.ranks import Deal, Dealt, OneRank, Ranks, Undealt
from layers.parallel.shares import AttentionShares, Shares

__all__ = ["Copies", "Place", "RanksOrCopies", "start_all"]

_PLACE = "UMBRA_BENCH_RANK"
_ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes this is, and the file by which they find each other."""

    shares: Shares = field(default_factory=Shares)
    meeting: str = ""

    @classmethod
    def mine(cls) -> "Place | None":
        """Return the place that `start_all` gave to this process."""
        told = os.environ.get(_PLACE)
        if told is None:
            return None
        rank, world, meeting = told.split(":", 2)
        return cls(Shares(int(rank), int(world)), meeting)

    def join(self, device: torch.device, attention: AttentionShares) -> "RanksOrCopies":
        """Return the ranks, once all are there."""
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{self.meeting}",
            rank=self.shares.rank,
            world_size=self.shares.world,
            timeout=datetime.timedelta(hours=1),
            device_id=device,
        )
        shares = replace(self.shares, attention=attention)
        return RanksOrCopies(CudaRanks(shares, device, limit_s=_LIMIT_S))


def start_all(world: int, arguments: Sequence[str]) -> int:
    """Run this command in `world` processes; return the first exit code that is not 0, or 0.

    The first process prints; the others print only what goes wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.bench.network", *arguments]
        processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **_ENVIRONMENT, _PLACE: f"{rank}:{world}:{folder}/meeting"},
                stdout=subprocess.DEVNULL if rank else None,
            )
            for rank in range(world)
        ]
        try:
            return next((code for one in processes if (code := one.wait())), 0)
        finally:
            for one in processes:
                one.kill()


class Copies:
    """A rank that is alone: it copies where others would exchange. Results are wrong."""

    def __init__(self, shares: Shares) -> None:
        """Take what it holds."""
        self.shares = shares

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return a copy."""
        return partial.clone()

    def gathered(self, part: Tensor) -> Tensor:
        """Return copies side by side."""
        return part.repeat(1, self.shares.world)

    def deal(self, tokens: int, width: int) -> Deal:
        """Return what GPUs that reach each other would do."""
        if self.shares.attention == "data":
            return Undealt(OneRank())
        few = tokens * width * torch.bfloat16.itemsize <= most_bytes(self.shares.world)
        return Undealt(self) if few else Dealt(self, tokens)

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return copies, one after the other, each with the size of a rank's rows."""
        first = [rows[:1].expand(count, *rows.shape[1:]) for count in counts]
        first[self.shares.rank] = rows
        return torch.cat(first)

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return a copy of this rank's rows."""
        return partial.split([*counts])[self.shares.rank].clone()

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return as many rows as others have for this rank."""
        return rows.new_zeros((sum(taken), *rows.shape[1:]))

    def least(self, value: int) -> int:
        """Return it."""
        return value

    def swapped(self, rows: Tensor, size: int) -> Tensor:
        """Return copies of the rows that this rank mixes."""
        first = size * self.shares.rank
        mine = rows[first : first + size]
        return mine.expand(self.shares.world, *mine.shape).contiguous()

    def stacked(self, rows: Tensor) -> Tensor:
        """Return copies, one after the other."""
        return rows.repeat(self.shares.world, *(1 for _ in rows.shape[1:]))


class RanksOrCopies:
    """Ranks whose exchanges can be replaced by copies on this rank's own device.

    The difference between the two is what exchanges take.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Take the ranks."""
        self._ranks, self._all = ranks, ranks

    @property
    def shares(self) -> Shares:
        """Return what this rank holds."""
        return self._ranks.shares

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Copy instead of exchanging while this is open."""
        self._ranks = Copies(self.shares)
        yield
        self._ranks = self._all

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum, or a copy."""
        return self._ranks.all_reduce(partial)

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts, or as many copies of one."""
        return self._ranks.gathered(part)

    def deal(self, tokens: int, width: int) -> Deal:
        """Return who mixes which tokens."""
        return self._ranks.deal(tokens, width)

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all ranks' rows, or copies of this rank's."""
        return self._ranks.collected(rows, counts)

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sums of this rank's rows, or a copy."""
        return self._ranks.returned(partial, counts)

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return what others have for this rank."""
        return self._ranks.traded(rows, given, taken)

    def least(self, value: int) -> int:
        """Return the least."""
        return self._ranks.least(value)
