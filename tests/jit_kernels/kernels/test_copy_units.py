"""Units copied by the device, word by word."""

import pytest

from jit_kernels.copy_units import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.test_copy_units import some_units
from tests.testing.compare import assert_same_bits


@pytest.mark.parametrize("size", [8, 8200, 37_440])
@pytest.mark.parametrize("count", with_large([0, 1, 5], [200]))
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_pool_holds_what_the_reference_writes(layers: int, count: int, size: int) -> None:
    pool, pairs = some_units(layers, 2 * count + 3, size, count)
    want = pool.clone()

    triton_backend.copy_units(pool, pairs)

    reference.copy_units(want, pairs)
    assert_same_bits(pool, want)
