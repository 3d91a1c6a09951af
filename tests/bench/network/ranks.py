"""A network shared by several GPUs of one host: one process a GPU, which all measure at once."""

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from layers.parallel.cuda_ranks import CudaRanks
from layers.parallel.ranks import Deal, Ranks, Undealt
from layers.parallel.shares import Shares

__all__ = ["Place", "RanksOrCopies", "start_all"]

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

    def join(self, device: torch.device) -> "RanksOrCopies":
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
        return RanksOrCopies(CudaRanks(self.shares, device, limit_s=_LIMIT_S))


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


class RanksOrCopies:
    """Ranks whose exchanges can be replaced by copies on this rank's own device.

    The difference between the two is what exchanges take. Results are wrong with copies.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Take the ranks."""
        self._ranks, self._copies = ranks, False

    @property
    def shares(self) -> Shares:
        """Return what this rank holds."""
        return self._ranks.shares

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Copy instead of exchanging while this is open."""
        self._copies = True
        yield
        self._copies = False

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum, or a copy."""
        return partial.clone() if self._copies else self._ranks.all_reduce(partial)

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts, or as many copies of one."""
        return part.repeat(1, self.shares.world) if self._copies else self._ranks.gathered(part)

    def deal(self, tokens: int, width: int) -> Deal:
        """Return who mixes which tokens."""
        deal = self._ranks.deal(tokens, width)
        # Where all mix all, they sum by the method above.
        return Undealt(self) if isinstance(deal, Undealt) else deal

    def least(self, value: int) -> int:
        """Return the least."""
        return self._ranks.least(value)
