"""Routed experts from weights of few bits, against a loop over rows in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.checks import ShapeError
from jit_kernels.expert_weights import Fp4Experts, Fp8Experts
from jit_kernels.expert_weights.reference import dense_expert
from jit_kernels.streamed_moe import streamed_moe
from tests.jit_kernels.kernels.experts import chosen_experts, fp4_experts, fp8_experts
from tests.testing.compare import Bounds, assert_close, assert_same_bits

LIMIT = 1.0


@pytest.mark.parametrize("form", [fp4_experts, fp8_experts])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(0, 3, 2), (1, 3, 2), (9, 4, 3)])
def test_each_row_gets_the_sum_of_its_experts(
    rows: int, experts: int, top_k: int, form: Callable[[int, int, int], Fp4Experts | Fp8Experts]
) -> None:
    parts = form(experts, 128, 128)
    x, plus = torch.randn(rows, 128).bfloat16(), torch.randn(rows, 128)
    chosen, weights = chosen_experts(rows, experts, top_k)

    got = streamed_moe(x, chosen, weights, parts, limit=LIMIT, plus=plus, out_dtype=torch.float32)

    want = plus.double()
    for t in range(rows):
        for e, w in zip(chosen[t].tolist(), weights[t].tolist(), strict=True):
            gate_up, down = (part.double() for part in dense_expert(parts, e))
            gate, up = (gate_up @ x[t].double()).chunk(2)
            hidden = F.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
            want[t] += w * (down @ hidden)
    assert_close(got, want.float(), Bounds(atol=2e-2, rtol=1e-2))


def test_what_is_added_may_come_late() -> None:
    parts, x = fp8_experts(2, 128, 128), torch.randn(3, 128).bfloat16()
    chosen, weights = chosen_experts(3, 2, 1)
    plus, calls = torch.randn(3, 128), list[str]()

    def late() -> torch.Tensor:
        calls.append("asked")
        return plus

    got = streamed_moe(x, chosen, weights, parts, limit=LIMIT, plus=late)

    assert calls == ["asked"]
    assert_same_bits(got, streamed_moe(x, chosen, weights, parts, limit=LIMIT, plus=plus))
    with pytest.raises(ShapeError, match="plus has shape"):
        streamed_moe(x, chosen, weights, parts, limit=LIMIT, plus=lambda: plus[:2])


def test_experts_of_other_ranks_count_as_zero() -> None:
    parts, x = fp8_experts(2, 128, 128), torch.randn(3, 128).bfloat16()
    weights = torch.rand(3, 2)

    got = streamed_moe(x, torch.tensor([[1, 2]] * 3), weights, parts, limit=LIMIT)

    alone = streamed_moe(x, torch.tensor([[1]] * 3), weights[:, :1], parts, limit=LIMIT)
    assert_same_bits(got, alone)


def test_sizes_that_do_not_fit_are_refused() -> None:
    parts, x = fp4_experts(2, 128, 128), torch.zeros(3, 128).bfloat16()
    experts, weights = torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1)

    with pytest.raises(ShapeError, match="x has shape"):
        streamed_moe(x[:, :64], experts, weights, parts, limit=LIMIT)
    with pytest.raises(ShapeError, match="weights has shape"):
        streamed_moe(x, experts, weights[:2], parts, limit=LIMIT)
    with pytest.raises(ShapeError, match="plus has shape"):
        streamed_moe(x, experts, weights, parts, limit=LIMIT, plus=torch.zeros(3, 1))
    with pytest.raises(ShapeError, match="size is 24"):
        streamed_moe(x, experts, weights, parts, limit=LIMIT, size=24)
    with pytest.raises(ShapeError, match="the result is to be"):
        streamed_moe(x, experts, weights, parts, limit=LIMIT, out_dtype=torch.float16)
