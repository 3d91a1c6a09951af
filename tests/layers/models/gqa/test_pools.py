"""Pages of keys and values."""

import torch

from layers.models.gqa.pools import KeyValuePools, PageShape
from mem_cache.spec import PoolSizes

PAGE = PageShape(16, 2, 4, torch.bfloat16)


def test_a_page_weighs_what_the_pools_hold_for_it() -> None:
    pools = KeyValuePools(3, PAGE, PoolSizes(4, 0, 0), torch.device("cpu"))

    assert PAGE.bytes == 2 * 16 * 2 * 4 * 2
    assert pools.bytes == 3 * PAGE.bytes * 5
    assert set(pools.tensors()) == {"keys", "values"}


def test_pages_are_copied_in_every_layer_one_after_the_other() -> None:
    pools = KeyValuePools(2, PAGE, PoolSizes(4, 0, 0), torch.device("cpu"))
    for tensor in pools.tensors().values():
        tensor.copy_(torch.randn(tensor.shape))
    before = {name: tensor.clone() for name, tensor in pools.tensors().items()}

    pools.copy_full_pages([(1, 2), (2, 3)])
    pools.copy_full_pages([])

    for name, tensor in pools.tensors().items():
        for page, source in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4)):
            assert torch.equal(tensor[:, page], before[name][:, source])
