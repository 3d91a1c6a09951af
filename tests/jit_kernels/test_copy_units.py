"""Units copied over others."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.copy_units import copy_units
from tests.testing.compare import assert_same_bits


def some_units(layers: int, units: int, size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a pool of random bytes, and pairs of distinct units."""
    pool = torch.randint(256, (layers, units, size), dtype=torch.uint8)
    return pool, torch.randperm(units)[: 2 * count].view(2, count)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_units_lie_where_they_were_sent_and_nothing_else_is_touched(
    device: torch.device, layers: int
) -> None:
    pool, pairs = some_units(layers, 9, 24, 4)
    want = pool.clone()
    for source, target in pairs.T.tolist():
        want[:, target] = pool[:, source]

    copy_units(pool, pairs)

    assert_same_bits(pool, want)


def test_no_pairs_copy_nothing(device: torch.device) -> None:
    pool, pairs = some_units(2, 3, 8, 0)
    want = pool.clone()

    copy_units(pool, pairs)

    assert_same_bits(pool, want)


def test_a_pool_of_another_kind_is_refused(device: torch.device) -> None:
    pool, pairs = some_units(2, 5, 24, 2)

    for other in (pool[:, :, :20], pool[:, ::2], torch.zeros(2, 5, 12, dtype=torch.uint8)):
        with pytest.raises(ShapeError, match="contiguous"):
            copy_units(other, pairs)
    with pytest.raises(ShapeError, match="pairs"):
        copy_units(pool, pairs[:1])
