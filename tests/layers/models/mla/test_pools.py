"""Pages of latent records."""

import torch

from layers.models.mla.pools import LatentPools
from mem_cache.spec import PoolSizes


def test_a_position_has_one_record_in_each_layer() -> None:
    shape = (3, 16, 72)

    pools = LatentPools(shape, torch.bfloat16, PoolSizes(4, 0, 0), torch.device("cpu"))

    assert pools.records.shape == (3, 5, 16, 72)
    assert pools.tensors() == {"records": pools.records}
    assert pools.bytes == 3 * 5 * 16 * 72 * 2
