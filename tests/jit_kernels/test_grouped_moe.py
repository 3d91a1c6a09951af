"""Routed experts over rounded rows, against those over rows as they are."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.expert_blocks import block_limit, expert_blocks
from jit_kernels.grouped_moe import grouped_moe
from jit_kernels.grouped_moe.sorted_rows import SortedRows, block_size, likely_blocks
from jit_kernels.quant_fp8 import quantise_rows
from jit_kernels.streamed_moe import streamed_moe
from tests.jit_kernels.kernels.experts import chosen_experts, fp8_experts
from tests.testing.compare import Bounds, assert_close

LIMIT = 1.0


@pytest.mark.parametrize(("rows", "experts", "top_k"), [(0, 3, 2), (1, 3, 2), (9, 4, 3)])
def test_rounding_rows_changes_little(rows: int, experts: int, top_k: int) -> None:
    parts = fp8_experts(experts, 256, 128)
    x, plus = torch.randn(rows, 256).bfloat16(), torch.randn(rows, 256)
    chosen, weights = chosen_experts(rows, experts, top_k)
    codes, scales = quantise_rows(x)

    got = grouped_moe(
        *(codes, scales, chosen, weights, parts), limit=LIMIT, plus=plus, out_dtype=torch.float32
    )

    want = streamed_moe(
        *(x, chosen, weights, parts), limit=LIMIT, plus=plus, out_dtype=torch.float32
    )
    assert_close(got, want, Bounds(atol=0.3, cosine=0.998))


def test_rows_that_are_codes_already_are_not_changed() -> None:
    parts = fp8_experts(2, 128, 128)
    x = (torch.randint(-8, 9, (5, 128)) / 4).bfloat16()
    chosen = torch.tensor([[1], [0], [1], [1], [0]])

    got = grouped_moe(*quantise_rows(x), chosen, torch.ones(5, 1), parts, limit=1e-3)

    want = streamed_moe(x, chosen, torch.ones(5, 1), parts, limit=1e-3)
    assert_close(got.float(), want.float(), Bounds(atol=3e-4, rtol=6e-2, cosine=0.999))


@pytest.mark.parametrize("size", [64, 128])
def test_regions_hold_their_scales_column_by_column(size: int) -> None:
    scales = torch.arange(3 * size * 2).float()
    rows = SortedRows(torch.empty(3 * size, 256), scales, torch.empty(0), 1, size)

    head, tail = rows.region_scales()

    assert (head.shape, head.stride()) == ((size, 2), (1, size))
    assert (tail.shape, tail.stride()) == ((2 * size, 2), (1, 2 * size))
    assert head[0].tolist() == [0.0, size]
    assert tail[0].tolist() == [2 * size, 4 * size]


def test_blocks_are_small_where_experts_have_few_rows_each() -> None:
    assert [block_size(tokens * 6, 256) for tokens in (1, 4096, 4097)] == [64, 64, 128]


@pytest.mark.parametrize("pairs", [6, 600, 6144, 24576, 24582, 49152, 98304])
def test_even_and_smooth_spreads_stay_below_the_likely_number_of_blocks(pairs: int) -> None:
    likely, size = likely_blocks(pairs, 256), block_size(pairs, 256)
    even = torch.randint(0, 256, (pairs, 1))
    uneven = torch.multinomial(torch.rand(256) + 0.05, pairs, replacement=True)[:, None]

    for experts in (even, uneven):
        used = int((expert_blocks(experts, num_experts=256, size=size).expert >= 0).sum())
        assert used <= likely
    assert likely <= block_limit(pairs, 256, size) * 1.3 + 32


def test_sizes_that_do_not_fit_are_refused() -> None:
    parts, (codes, scales) = fp8_experts(2, 128, 128), quantise_rows(torch.zeros(3, 128))
    experts, weights = torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1)

    with pytest.raises(ShapeError, match=r"codes is torch\.float32"):
        grouped_moe(codes.float(), scales, experts, weights, parts, limit=LIMIT)
    with pytest.raises(ShapeError, match="scales has shape"):
        grouped_moe(codes, scales[:2], experts, weights, parts, limit=LIMIT)
    with pytest.raises(ShapeError, match="experts has shape"):
        grouped_moe(codes, scales, experts[:2], weights, parts, limit=LIMIT)
    with pytest.raises(ShapeError, match="plus has shape"):
        grouped_moe(codes, scales, experts, weights, parts, limit=LIMIT, plus=torch.zeros(3, 1))
