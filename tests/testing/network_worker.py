"""An executor of a small random network, in this process or as a worker of its own.

python -m tests.testing.network_worker ADDRESS
"""

import sys

import msgspec
import torch

from mem_cache.spec import PoolSizes
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.worker import serve
from runtime.wire.channel import ExecutorChannel, RankAddress
from tests.testing.cpu_runner import cpu_runner, tiny_network

SIZES = PoolSizes(full_pages=16, swa_pages=60, states=20)
ROWS = 4


def local_executor() -> CpuModelRunner:
    """Return an executor of a network of its own, the same in every process."""
    network = tiny_network()
    return cpu_runner(network, network.pools(SIZES), lines=ROWS)


def main() -> None:
    """Serve until the scheduler closes the channel."""
    torch.set_num_threads(1)
    channel = ExecutorChannel.attach(msgspec.json.decode(sys.argv[1], type=RankAddress), 60)
    try:
        serve(local_executor(), channel)
    finally:
        channel.close()


if __name__ == "__main__":
    main()
