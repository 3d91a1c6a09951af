"""Experts of tokens from what a gate multiplies."""

import pytest
import torch

import jit_kernels.gate_topk as op
from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.checks import ShapeError
from jit_kernels.gate_topk import gate_hashed, gate_topk
from jit_kernels.route_topk import route_hashed, route_topk

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(0, 4, 2), (1, 3, 1), (33, 40, 6)])
def test_a_gate_routes_as_its_logits_do(
    tokens: int, experts: int, top_k: int, invariant: bool
) -> None:
    x, weight = torch.randn(tokens, 64).bfloat16(), torch.randn(experts, 64).bfloat16()
    bias, table = torch.randn(experts), torch.randint(experts, (9, top_k))
    ids = torch.randint(9, (tokens,))
    logits = bf16_linear(x, weight, invariant=invariant)

    chosen = gate_topk(x, weight, bias, top_k=top_k, scale=1.5, invariant=invariant)
    looked_up = gate_hashed(x, weight, table, ids, scale=1.5, invariant=invariant)

    for got, want in (
        (chosen, route_topk(logits, bias, top_k=top_k, scale=1.5)),
        (looked_up, route_hashed(logits, table, ids, scale=1.5)),
    ):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_operands_that_do_not_fit_are_refused() -> None:
    x, weight, bias = torch.zeros(2, 8).bfloat16(), torch.zeros(4, 8).bfloat16(), torch.zeros(4)
    table, ids = torch.zeros((3, 2), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)

    with pytest.raises(ShapeError, match=r"x is torch\.float32"):
        gate_topk(x.float(), weight, bias, top_k=1, scale=1.0)
    with pytest.raises(ShapeError, match="x has shape"):
        gate_topk(x[:, :4], weight, bias, top_k=1, scale=1.0)
    with pytest.raises(ShapeError, match="bias has shape"):
        gate_topk(x, weight, bias[:3], top_k=1, scale=1.0)
    with pytest.raises(ShapeError, match="top_k is 5"):
        gate_topk(x, weight, bias, top_k=5, scale=1.0)
    with pytest.raises(ShapeError, match="token_ids has shape"):
        gate_hashed(x, weight, table, ids[:1], scale=1.0)
    with pytest.raises(ShapeError, match="contiguous"):
        gate_hashed(x, weight, table.T.contiguous().T, ids, scale=1.0)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, None),
        ({"bf16_linear": "deep_gemm"}, None),
        ({"bf16_linear": "triton"}, "bf16_linear is left to triton"),
        ({"route_hashed": "reference"}, "route_hashed is left to reference"),
    ],
)
def test_one_kernel_takes_over_only_what_it_gives_the_bits_of(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], why: str | None
) -> None:
    best = {"bf16_linear": "mixed", "route_topk": "cuda", "route_hashed": "cuda", **found}
    monkeypatch.setattr(op, "chosen", lambda device: best if device == "cuda" else {})

    assert op._why_separate() == why
