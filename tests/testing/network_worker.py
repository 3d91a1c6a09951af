"""An executor of a small random network, in this process or as a worker of its own.

python -m tests.testing.network_worker ADDRESS [RANK WORLD MEETING]

Of several ranks, which find each other by the file MEETING, each has rows of its own.
"""

import sys

import msgspec
import torch
import torch.distributed as dist

from layers.parallel.ranks import HostRanks, OneRank, Ranks
from layers.parallel.shares import Shares
from mem_cache.spec import PoolSizes
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.worker import serve
from runtime.wire.channel import ExecutorChannel, RankAddress
from tests.testing.cpu_runner import cpu_runner, tiny_network

SIZES = PoolSizes(full_pages=16, swa_pages=60, states=20)
ROWS = 4


def local_executor(ranks: Ranks | None = None) -> CpuModelRunner:
    """Return an executor of a network of its own, the same in every process.

    ranks  this rank among others; None: there is one
    """
    network = tiny_network(ranks=ranks)
    return cpu_runner(network, network.pools(SIZES), lines=ROWS)


def main(address: str, rank: str = "0", world: str = "1", meeting: str = "") -> None:
    """Serve until the scheduler closes the channel."""
    torch.set_num_threads(1)
    ranks: Ranks = OneRank()
    if meeting:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world)
        )
        ranks = HostRanks(Shares(int(rank), int(world), "data"))
    channel = ExecutorChannel.attach(msgspec.json.decode(address, type=RankAddress), 60)
    try:
        serve(local_executor(ranks), channel, rank=int(rank))
    finally:
        channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
