"""Attention over a workspace by the vendor, against the reference."""

import pytest
import torch
from torch import Tensor

from jit_kernels.sparse_prefill import reference
from jit_kernels.vendor_library import why_no_flash_mla
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.packed_pages import OUTSIDE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(why_no_flash_mla()), reason=str(why_no_flash_mla())),
]
SCALE = 512**-0.5
# Tokens, heads, columns, rows of the workspace, lengths.
CASES = [
    *((1, 4, 128, 40, False), (3, 5, 256, 300, True), (2, 66, 128, 64, False)),
    *((300, 64, 640, 2000, True), (129, 128, 1152, 5000, False), (1, 64, 8320, 9000, True)),
]


def attend(q: Tensor, keys: Tensor, index: Tensor, sink: Tensor, lengths: Tensor | None) -> Tensor:
    """Attend by the vendor."""
    from jit_kernels.sparse_prefill import flash_mla_backend

    return flash_mla_backend.sparse_prefill(q, keys, index, sink, SCALE, lengths)


def some_index(tokens: int, columns: int, rows: int) -> Tensor:
    """Return an index with holes anywhere; every fourth token has no keys."""
    index = torch.randint(rows, (tokens, columns), dtype=torch.int32)
    index[torch.rand(tokens, columns) < 0.3] = -1
    index[3::4] = -1
    return index


@pytest.mark.parametrize(("tokens", "heads", "columns", "rows", "has_lengths"), CASES)
def test_attention_equals_the_reference(
    tokens: int,
    heads: int,
    columns: int,
    rows: int,
    has_lengths: bool,
) -> None:
    q, sink = torch.randn(tokens, heads, 512).bfloat16(), torch.randn(heads)
    keys = torch.randn(rows, 512).bfloat16()
    index, lengths = some_index(tokens, columns, rows), None
    if has_lengths:
        lengths = torch.randint(columns + 1, (tokens,), dtype=torch.int32)
        lengths[:1] = columns - 1
        lengths[1:2] = 0
        index[torch.arange(columns) >= lengths.unsqueeze(1)] = OUTSIDE
    unnamed = torch.ones(rows, dtype=torch.bool)
    unnamed[index[(index >= 0) & (index < rows)].to(torch.int64)] = False
    keys[unnamed] = torch.nan

    got = attend(q, keys, index, sink, lengths)

    want = reference.sparse_prefill(q, keys, index, sink, SCALE, lengths)
    assert_close(got, want, Bounds(atol=1e-2, rtol=2e-2, cosine=0.9999, rms=1e-2))


def test_a_token_has_the_same_bits_in_any_company() -> None:
    q, sink = torch.randn(4, 4, 512).bfloat16(), torch.randn(4)
    keys, index = torch.randn(50, 512).bfloat16(), some_index(4, 128, 50)

    whole = attend(q, keys, index, sink, None)

    for pick in (slice(0, 1), slice(2, 4)):
        part = attend(q[pick], keys, index[pick], sink, None)
        assert_same_bits(part, whole[pick])
