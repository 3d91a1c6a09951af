"""Routed experts with biases against a loop over tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jit_kernels.biased_moe import biased_moe
from jit_kernels.biased_moe.reference import biased_moe as in_torch
from jit_kernels.checks import ShapeError
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

LIMIT, ALPHA = 2.0, 1.7


def weights_of(experts: int, width: int, inner: int) -> dict[str, Any]:
    """Return random weights and biases, and the gate's constants."""
    return {
        "gate_up": torch.randn(experts, 2 * inner, width),
        "down": torch.randn(experts, width, inner),
        "biases": (torch.randn(experts, 2 * inner), torch.randn(experts, width)),
        "limit": LIMIT,
        "alpha": ALPHA,
        "invariant": True,
    }


@pytest.mark.parametrize("op", [biased_moe, in_torch])
@pytest.mark.parametrize(("tokens", "inner"), [(0, 5), (1, 3), (90, 21)])
def test_each_token_gets_the_sum_of_its_experts(
    op: Callable[..., torch.Tensor], tokens: int, inner: int
) -> None:
    x, chosen = torch.randn(tokens, 24), torch.rand(tokens, 5).argsort(1)[:, :3]
    weights, given = torch.rand(tokens, 3), weights_of(5, 24, inner)

    got = op(x, chosen, weights, **given)

    want, (into, back) = torch.zeros(tokens, 24), given["biases"]
    for t in range(tokens):
        for e, w in zip(chosen[t].tolist(), weights[t].tolist(), strict=True):
            gate, up = (given["gate_up"][e] @ x[t] + into[e]).chunk(2)
            glu = gate.clamp(max=LIMIT) * torch.sigmoid(ALPHA * gate.clamp(max=LIMIT))
            want[t] += w * (given["down"][e] @ ((up.clamp(-LIMIT, LIMIT) + 1) * glu) + back[e])
    assert_close(got, want, Bounds(atol=1e-4, rtol=1e-4))


@pytest.mark.parametrize("op", [biased_moe, in_torch])
def test_a_token_has_the_same_bits_in_any_company(op: Callable[..., torch.Tensor]) -> None:
    given = weights_of(5, 12, 7)

    def run(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return op(x, chosen, weights, **given)

    chosen = torch.rand(70, 5).argsort(1)[:, :3]
    assert_rows_independent(run, [torch.randn(70, 12), chosen, torch.rand(70, 3)])


def test_biases_of_another_size_are_refused() -> None:
    given = weights_of(2, 4, 3)
    one = torch.zeros(1, 1)
    given["biases"] = (given["biases"][0], torch.zeros(2, 3))

    with pytest.raises(ShapeError, match="b2 has shape"):
        biased_moe(torch.zeros(1, 4), one.long(), one, **given)
