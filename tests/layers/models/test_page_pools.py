"""Pools that are pages alone."""

import torch

from layers.models.page_pools import PagePools


def test_pages_are_copied_in_every_layer_and_tensor_one_after_the_other() -> None:
    pools = PagePools({"keys": torch.randn(2, 5, 16, 3), "others": torch.randn(2, 5, 16, 2, 4)})
    before = {name: tensor.clone() for name, tensor in pools.tensors().items()}

    pools.copy_full_pages([(1, 2), (2, 3)])
    pools.copy_full_pages([])

    for name, tensor in pools.tensors().items():
        for page, source in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4)):
            assert torch.equal(tensor[:, page], before[name][:, source])
    assert pools.bytes == 2 * 5 * 16 * (3 + 8) * 4
