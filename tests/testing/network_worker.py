"""An executor of a small random network, in this process or as a worker of its own.

python -m tests.testing.network_worker ADDRESS
"""

import sys

import msgspec
import torch

from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.reference_network import DeepseekV4
from layers.weights.loading import fill_dummy
from mem_cache.pools import KvPools
from mem_cache.spec import PoolSizes
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.worker import serve
from runtime.wire.channel import ExecutorChannel, RankAddress
from tests.testing.cpu_runner import cpu_runner
from tests.testing.direct import CPU
from tests.testing.tiny_model import CONFIG

SIZES = PoolSizes(full_pages=16, swa_pages=60, rings=20)
SEED = 7
ROWS = 4


def local_executor() -> CpuModelRunner:
    """Return an executor of a network of its own, the same in every process."""
    model = DeepseekV4(CONFIG, CPU, torch.float32)
    fill_dummy(model, SEED)
    return cpu_runner(model, KvPools(pool_spec(CONFIG, "fp32"), SIZES, CPU), lines=ROWS)


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
