"""Places of chosen blocks, found by the device."""

import pytest
import torch

from jit_kernels.translate_blocks import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

# Tokens, chosen, columns.
CASES = with_large([(0, 3, 4), (1, 1, 1), (3, 5, 64), (17, 64, 64)], [(500, 512, 512)])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(("tokens", "chosen", "columns"), CASES)
def test_places_are_those_of_the_reference(
    tokens: int, chosen: int, columns: int, by_row: bool, dtype: torch.dtype
) -> None:
    blocks = torch.randint(-1, 32, (tokens, chosen + 1)).to(dtype)[:, :chosen]
    row = torch.randint(4, (tokens,)) if by_row else None
    table = torch.randint(1, 1000, (4 if by_row else tokens, 4), dtype=torch.int32)
    wide = torch.full((tokens, columns + 9), 77, dtype=torch.int32)
    want = wide.clone()

    triton_backend.translate_blocks(blocks, table, wide[:, 5 : 5 + columns], 8, row)

    reference.translate_blocks(blocks, table, want[:, 5 : 5 + columns], 8, row)
    assert_same_bits(wide, want)
    if row is not None:
        base = torch.randint(1 << 20, (4,))
        triton_backend.place_blocks(blocks, base, wide[:, 5 : 5 + columns], row)
        reference.place_blocks(blocks, base, want[:, 5 : 5 + columns], row)
        assert_same_bits(wide, want)
