"""Pages of layers that attend everything, and of layers that attend a window."""

import torch

from layers.models.gpt_oss.pools import WindowLayout, WindowPools
from layers.models.unit_views import read_units, write_units
from mem_cache.spec import PoolSizes
from mem_cache.transfer import UnitIds

LAYOUT = WindowLayout((False, True, True, False, True), 70, 2, 4, torch.bfloat16)


def pools() -> WindowPools:
    """Return pools with random numbers."""
    made = WindowPools(LAYOUT, PoolSizes(3, 5, 0), torch.device("cpu"))
    for tensor in made.tensors().values():
        tensor.copy_(torch.randn(tensor.shape))
    return made


def test_units_weigh_what_the_pools_hold_for_them() -> None:
    spec = LAYOUT.cache("bf16", 0)

    assert (spec.full_page_bytes, spec.swa_page_bytes) == (256 * 2 * 32, 64 * 3 * 32)
    assert pools().bytes == 4 * spec.full_page_bytes + 6 * spec.swa_page_bytes
    assert LAYOUT.nth == (0, 0, 1, 1, 2)


def test_points_hold_what_is_before_a_token_and_a_replay_is_that_of_sliding_layers() -> None:
    spec = LAYOUT.cache("bf16", 3)

    assert (spec.tree.window, spec.tree.window_pages, spec.tree.has_state) == (70, 2, False)
    assert spec.replay_tokens == 3 * 69


def test_units_of_either_kind_are_moved_as_bytes() -> None:
    source, target = pools(), pools()
    units = UnitIds((2,), (1, 4), ())

    write_units(target.unit_views(), units, torch.cat(read_units(source.unit_views(), units)))

    for name, tensor in target.tensors().items():
        moved, given = (1, 4) if name.startswith("swa") else (2,), source.tensors()[name]
        for unit in range(tensor.shape[1]):
            assert torch.equal(tensor[:, unit], given[:, unit]) == (unit in moved)


def test_pages_of_either_kind_are_copied_one_after_the_other() -> None:
    made = pools()
    before = {name: tensor.clone() for name, tensor in made.tensors().items()}

    made.copy_full_pages([(1, 2), (2, 3)])
    made.copy_swa_pages([(5, 4), (4, 1), (0, 5)])

    for name, tensor in made.tensors().items():
        moved = {1: 5, 4: 5, 5: 0} if name.startswith("swa") else {2: 1, 3: 1}
        for unit in range(tensor.shape[1]):
            assert torch.equal(tensor[:, unit], before[name][:, moved.get(unit, unit)])
