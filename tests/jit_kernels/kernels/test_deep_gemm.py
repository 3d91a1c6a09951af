"""What runs through DeepGEMM: same numbers as the reference, same bits in any company."""

import pytest
import torch

from jit_kernels.fp8_linear import reference as fp8_reference
from jit_kernels.grouped_moe import reference as moe_reference
from jit_kernels.grouped_moe.sorted_rows import LARGE, SMALL
from jit_kernels.quant_fp8.reference import quantise_rows
from jit_kernels.vendor_library import why_no_deep_gemm
from tests.jit_kernels.kernels.experts import chosen_experts, fp8_experts
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.testing.compare import Bounds, assert_close, assert_same_bits

REASON = why_no_deep_gemm()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

# bfloat16 results of sums that keep fewer bits than float32 inside 128 channels.
ROUNDED = Bounds(atol=1e-2, rtol=2**-7, cosine=0.9999)
EXACT = Bounds(atol=1e-4, rtol=1e-4)
# DeepGEMM compiles each size of a weight for each of several ranges of rows, seconds apiece: all of
# them for one size, the ends and the middle for others.
ROWS, SOME_ROWS = [1, 3, 17, 33, 130, 1000], [1, 33, 1000]


def operands(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised rows, [T, K] or [T, G, K]."""
    codes, scales = quantise_rows(torch.randn(shape).flatten(1))
    return codes.view(shape), scales.unflatten(1, (*shape[1:-1], shape[-1] // 128))


@pytest.mark.parametrize("name", ["fp8_linear", "fp8_linear_mixed"])
@pytest.mark.parametrize(
    ("columns", "depth", "counts"),
    [(1536, 4096, ROWS), (4096, 2048, SOME_ROWS), (36, 1024, SOME_ROWS)],
)
def test_fp8_products_equal_the_reference(
    name: str, columns: int, depth: int, counts: list[int]
) -> None:
    from jit_kernels.fp8_linear import deep_gemm_backend

    weight = fp8_weight(columns, depth)
    for rows in counts:
        codes, scales = operands(rows, depth)
        got = getattr(deep_gemm_backend, name)(codes, scales, *weight)
        want = fp8_reference.fp8_linear(codes, scales, *weight)
        assert_close(got, want, ROUNDED, what=f"{rows} rows")


@pytest.mark.parametrize("name", ["fp8_linear_grouped", "fp8_linear_grouped_mixed"])
def test_fp8_products_of_groups_equal_the_reference(name: str) -> None:
    from jit_kernels.fp8_linear import deep_gemm_backend

    weight = fp8_weight(8, 1024, 4096)
    for rows in SOME_ROWS:
        codes, scales = operands(rows, 8, 4096)
        got = getattr(deep_gemm_backend, name)(codes, scales, *weight)
        want = fp8_reference.fp8_linear_grouped(codes, scales, *weight)
        assert_close(got, want, ROUNDED, what=f"{rows} rows")


def test_scales_of_any_layout_are_taken() -> None:
    from jit_kernels.fp8_linear import deep_gemm_backend

    codes, scales = operands(33, 4096)
    weight = fp8_weight(1536, 4096)

    got = deep_gemm_backend.fp8_linear(codes, scales.contiguous(), *weight)

    assert_same_bits(got, deep_gemm_backend.fp8_linear(codes, scales, *weight))


def test_an_fp8_row_has_the_same_bits_in_any_company() -> None:
    from jit_kernels.fp8_linear import deep_gemm_backend

    x, weight = torch.randn(1000, 4096), fp8_weight(1536, 4096)
    whole = deep_gemm_backend.fp8_linear(*quantise_rows(x), *weight)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 190), slice(999, 1000)):
        part = deep_gemm_backend.fp8_linear(*quantise_rows(x[rows]), *weight)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.parametrize("name", ["bf16_linear", "bf16_linear_mixed"])
@pytest.mark.parametrize(
    ("columns", "depth", "counts"),
    [(2304, 4096, ROWS), (64, 4096, SOME_ROWS), (36, 1001, SOME_ROWS)],
)
def test_bf16_products_are_exact_to_float32(
    name: str, columns: int, depth: int, counts: list[int]
) -> None:
    from jit_kernels.bf16_linear import deep_gemm_backend

    weight = (torch.randn(columns, depth) * depth**-0.5).bfloat16()
    for rows in counts:
        x = torch.randn(rows, depth).bfloat16()
        got = getattr(deep_gemm_backend, name)(x, weight)
        want = (x.double() @ weight.double().T).float()
        assert_close(got, want, EXACT, what=f"{rows} rows")


def test_a_bf16_row_has_the_same_bits_in_any_company() -> None:
    from jit_kernels.bf16_linear import deep_gemm_backend

    x, weight = torch.randn(1000, 4096).bfloat16(), (torch.randn(2304, 4096) / 64).bfloat16()
    whole = deep_gemm_backend.bf16_linear(x, weight)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 190), slice(999, 1000)):
        part = deep_gemm_backend.bf16_linear(x[rows], weight)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.parametrize("rows", [1, 130, 3000])
def test_routed_experts_equal_the_reference(rows: int) -> None:
    from jit_kernels.grouped_moe import deep_gemm_backend

    x, parts = quantise_rows(torch.randn(rows, 4096)), fp8_experts(32, 4096, 2048)
    chosen, plus = chosen_experts(rows, 32, 6), torch.randn(rows, 4096)

    got = deep_gemm_backend.grouped_moe(*x, *chosen, parts, 1.5, plus, torch.float32)

    want = moe_reference.grouped_moe(*x, *chosen, parts, 1.5, plus, torch.float32)
    assert_close(got, want, Bounds(atol=1e-1, rtol=5e-2, cosine=0.9995))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_spread_that_needs_more_blocks_than_likely_comes_out_right(size: int) -> None:
    """Every expert but one has one row more than whole blocks."""
    from jit_kernels.grouped_moe import deep_gemm_backend

    counts = [size + 1] * 40
    experts = torch.repeat_interleave(torch.arange(40), torch.tensor(counts))[:, None]
    experts = experts[torch.randperm(len(experts))]
    x, parts = quantise_rows(torch.randn(len(experts), 512)), fp8_experts(40, 512, 256)
    weights = torch.rand(len(experts), 1)

    got = deep_gemm_backend.grouped_moe(*x, experts, weights, parts, 1.5, None, torch.float32)

    want = moe_reference.grouped_moe(*x, experts, weights, parts, 1.5, None, torch.float32)
    assert_close(got, want, Bounds(atol=1e-1, rtol=5e-2, cosine=0.9995))


def test_routed_rows_have_the_same_bits_in_any_company() -> None:
    from jit_kernels.grouped_moe import deep_gemm_backend

    (codes, scales), parts = quantise_rows(torch.randn(1250, 512)), fp8_experts(40, 512, 256)
    experts, weights = chosen_experts(1250, 40, 4)
    options = (parts, 1.5, None, torch.float32)
    whole = deep_gemm_backend.grouped_moe(codes, scales, experts, weights, *options)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 1000)):
        part = deep_gemm_backend.grouped_moe(
            codes[rows], scales[rows], experts[rows], weights[rows], *options
        )
        assert_same_bits(part, whole[rows], what=f"rows {rows}")
