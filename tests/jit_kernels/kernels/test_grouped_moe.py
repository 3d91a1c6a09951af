"""Routed experts for many rows on the device: sort, round, multiply, gate, round, multiply, sum."""

import pytest
import torch

from jit_kernels.grouped_moe import cuda_backend, reference, triton_gate
from jit_kernels.grouped_moe.sorted_rows import SortedRows
from jit_kernels.grouped_moe.triton_run import Gate, run
from jit_kernels.grouped_moe.triton_tail import multiply_region
from jit_kernels.quant_fp8.reference import quantise_rows
from tests.jit_kernels.kernels.experts import chosen_experts, fp8_experts
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close

LIMIT = 1.5
# A gated activation on the edge between two codes may fall to either side of it.
BOUNDS = Bounds(atol=1e-1, rtol=5e-2, cosine=0.9995)
CASES = with_large(
    [(3, 3, 2)],
    [(1, 40, 6), (130, 40, 6), (1000, 40, 6), (3000, 16, 6)],
)
WIDTH, INNER = with_large([(256, 128)], [(4096, 2048)])[-1]


def product(
    rows: SortedRows, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """Multiply the blocks of both regions as those of the second are."""
    for scales, first in zip(rows.region_scales(), (0, rows.first), strict=True):
        multiply_region(rows, scales, weight, weight_scales, out, first=first)


@pytest.mark.parametrize(("rows", "experts", "top_k"), CASES)
def test_each_row_gets_the_sum_of_its_experts(rows: int, experts: int, top_k: int) -> None:
    x, parts = quantise_rows(torch.randn(rows, WIDTH)), fp8_experts(experts, WIDTH, INNER)
    chosen, plus = chosen_experts(rows, experts, top_k), torch.randn(rows, WIDTH)

    got = run(
        x,
        *chosen,
        parts,
        limit=LIMIT,
        plus=plus,
        out_dtype=torch.float32,
        product=product,
        gate=triton_gate.gate_rows,
        first=0,
    )

    want = reference.grouped_moe(*x, *chosen, parts, LIMIT, plus, torch.float32)
    assert_close(got, want, BOUNDS)


@pytest.mark.parametrize("first", [0, 2])
def test_blocks_in_either_region_and_experts_elsewhere_come_out_alike(first: int) -> None:
    x, parts = quantise_rows(torch.randn(5, WIDTH)), fp8_experts(3, WIDTH, INNER)
    experts = torch.tensor([[2, 0], [2, 7], [2, 0], [-1, 2], [2, 1]])

    got = run(
        x,
        experts,
        torch.ones(5, 2),
        parts,
        limit=LIMIT,
        plus=None,
        out_dtype=torch.float32,
        product=product,
        gate=triton_gate.gate_rows,
        first=first,
    )

    want = reference.grouped_moe(*x, experts, torch.ones(5, 2), parts, LIMIT, None, torch.float32)
    assert_close(got, want, BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [128, 384, 2048, 3072])
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("size", [64, 128])
def test_gates_in_cuda_differ_from_those_in_triton_by_rounding(
    size: int, inner: int, first: int
) -> None:
    rows = 3 * size
    products = torch.randn(rows, 2 * inner).bfloat16() * 3.0
    member = torch.full((rows,), -1, dtype=torch.int32)
    # A block with few rows, a full one, and one that nobody wants.
    member[:37], member[size : 2 * size] = 4, 5

    def gated(gate: Gate) -> torch.Tensor:
        codes = torch.full((rows, inner), 255, dtype=torch.uint8).view(torch.float8_e4m3fn)
        scales = torch.full((rows * inner // 128,), torch.nan)
        hidden = SortedRows(codes, scales, member, first, size)
        gate(products, LIMIT, hidden)
        assert codes.view(torch.uint8)[member < 0].eq(255).all()
        scales = torch.cat(hidden.region_scales()).repeat_interleave(128, 1)
        return (codes.float() * scales)[member >= 0]

    got, want = gated(cuda_backend.gate_rows), gated(triton_gate.gate_rows)

    assert_close(got, want, Bounds(atol=5e-5, rtol=0.13))
    assert float((got != want).float().mean()) < 2e-3
