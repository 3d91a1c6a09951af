"""Indexer keys and queries whose first channels turn, against plain torch."""

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_keys import decode_keys
from jit_kernels.paged_rows import PageLayout, gather_rows
from jit_kernels.sparse_index import index_queries, store_index_keys
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("device")

TOKENS, WIDTH, TURNED = 6, 64, 16
LAYOUT = PageLayout(64, WIDTH, 4, 64 * (WIDTH + 4))


def rotation(angle: Tensor, *, halves: bool) -> Tensor:
    """Return rotations by angles [T, R / 2] as the ops take them."""
    if halves:
        return torch.stack((angle.cos(), angle.sin()), 1)
    sign = torch.tensor([-1.0, 1.0]).repeat(angle.shape[1])
    angle = angle.repeat_interleave(2, 1)
    return torch.stack((angle.cos(), angle.sin() * sign), 1)


def mixed(x: Tensor, angle: Tensor, *, halves: bool) -> Tensor:
    """Return vectors [T, ..., C], the first channels turned as complex numbers, then mixed."""
    first, rest = x.double().split([TURNED, WIDTH - TURNED], -1)
    pairs = (
        first.unflatten(-1, (2, -1)).transpose(-1, -2) if halves else first.unflatten(-1, (-1, 2))
    )
    turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex128)
    turn = turn.view(TOKENS, *[1] * (x.dim() - 2), -1)
    pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    first = (pairs.transpose(-1, -2) if halves else pairs).flatten(-2)
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < WIDTH:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
    return torch.cat((first, rest), -1) @ matrix * WIDTH**-0.5


@pytest.mark.parametrize("halves", [True, False])
def test_keys_are_turned_mixed_rounded_and_stored(halves: bool) -> None:
    keys, angle = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, TURNED // 2)
    pages = torch.full((3, LAYOUT.page_bytes), 255, dtype=torch.uint8)
    slots, before = torch.tensor([64, 191, 65, 130, 128, 127]), keys.clone()

    store_index_keys(pages, slots, keys, rotation(angle, halves=halves), LAYOUT, halves=halves)

    rows = gather_rows(pages, torch.arange(192), LAYOUT)
    got = decode_keys(rows[slots].contiguous(), record_format="fp8")
    want = mixed(keys, angle, halves=halves)
    assert_close(got, want, Bounds(rtol=1 / 14, atol=2.0**-9 * float(want.abs().max())))
    others = torch.ones(192, dtype=torch.bool)
    others[slots] = False
    assert bool((rows[others] == 255).all())
    assert_same_bits(keys, before)


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize(("heads", "padded"), [(3, 32), (33, 64)])
def test_queries_are_turned_mixed_and_rounded(heads: int, padded: int, halves: bool) -> None:
    q, weights = torch.randn(TOKENS, heads, WIDTH), torch.randn(TOKENS, heads)
    angle = torch.randn(TOKENS, TURNED // 2)

    codes, folded = index_queries(q, weights, rotation(angle, halves=halves), halves=halves)

    want = mixed(q, angle, halves=halves) * weights.unsqueeze(2)
    got = codes.float() * folded.unsqueeze(2)
    assert (codes.shape, folded.shape) == ((TOKENS, padded, WIDTH), (TOKENS, padded))
    assert_close(got[:, :heads], want, Bounds(rtol=1 / 14, atol=2.0**-9 * float(want.abs().max())))
    assert not bool(codes[:, heads:].float().any())
    assert not bool(folded[:, heads:].any())


def test_other_widths_and_turns_are_refused() -> None:
    pages = torch.zeros(1, LAYOUT.page_bytes, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="of 64 channels 66 turn"):
        store_index_keys(
            *(pages, torch.zeros(1).long(), torch.zeros(1, 64), torch.zeros(1, 2, 66), LAYOUT),
            halves=False,
        )
    with pytest.raises(ShapeError, match="slots has shape"):
        store_index_keys(
            *(pages, torch.zeros(2).long(), torch.zeros(1, 64), torch.zeros(1, 2, 8), LAYOUT),
            halves=True,
        )
    with pytest.raises(ShapeError, match="65 heads, expected at most 64"):
        index_queries(torch.zeros(1, 65, 64), torch.zeros(1, 65), torch.zeros(1, 2, 8), halves=True)
    with pytest.raises(ShapeError, match="of 48 channels"):
        index_queries(torch.zeros(1, 4, 48), torch.zeros(1, 4), torch.zeros(1, 2, 8), halves=True)
