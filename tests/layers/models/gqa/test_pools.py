"""Pages of keys and values."""

import torch

from layers.models.gqa.pools import KeyValuePools, PageShape
from mem_cache.spec import PoolSizes


def test_a_page_weighs_what_the_pools_hold_for_it() -> None:
    page = PageShape(16, 2, 4, torch.bfloat16)

    pools = KeyValuePools(3, page, PoolSizes(4, 0, 0), torch.device("cpu"))

    assert page.bytes == 2 * 16 * 2 * 4 * 2
    assert pools.bytes == 3 * page.bytes * 5
    assert set(pools.tensors()) == {"keys", "values"}
