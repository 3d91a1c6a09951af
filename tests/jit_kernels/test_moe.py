"""Routed experts against a loop over tokens."""

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.checks import ShapeError
from jit_kernels.moe import moe
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

LIMIT = 2.0


def experts_of(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """Return random distinct experts per token."""
    return torch.rand(tokens, experts).argsort(1)[:, :top_k]


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "width", "inner"),
    [(0, 3, 2, 8, 5), (1, 4, 2, 7, 3), (21, 5, 3, 24, 10), (90, 3, 2, 16, 9)],
)
def test_each_token_gets_the_sum_of_its_experts(
    tokens: int, experts: int, top_k: int, width: int, inner: int
) -> None:
    x, chosen = torch.randn(tokens, width), experts_of(tokens, experts, top_k)
    weights = torch.rand(tokens, top_k)
    gate_up, down = torch.randn(experts, 2 * inner, width), torch.randn(experts, width, inner)

    got = moe(x, chosen, weights, gate_up=gate_up, down=down, limit=LIMIT)

    want = torch.zeros(tokens, width, dtype=torch.float64)
    for t in range(tokens):
        for e, w in zip(chosen[t].tolist(), weights[t].tolist(), strict=True):
            gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
            hidden = F.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
            want[t] += w * (down[e].double() @ hidden)
    assert_close(got, want.float(), Bounds(atol=2e-5, rtol=1e-4))


def test_all_tokens_may_want_the_same_experts() -> None:
    x, weights = torch.randn(50, 8), torch.rand(50, 2)
    chosen = torch.tensor([[3, 1]]).expand(50, 2)
    gate_up, down = torch.randn(6, 10, 8), torch.randn(6, 8, 5)

    got = moe(x, chosen, weights, gate_up=gate_up, down=down, limit=LIMIT)

    alone = [
        moe(x[i : i + 1], chosen[:1], weights[i : i + 1], gate_up=gate_up, down=down, limit=LIMIT)
        for i in range(50)
    ]
    assert torch.equal(got, torch.cat(alone))


def test_a_token_has_the_same_bits_in_any_company() -> None:
    gate_up, down = torch.randn(5, 14, 12), torch.randn(5, 12, 7)

    def run(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return moe(x, chosen, weights, gate_up=gate_up, down=down, limit=LIMIT)

    assert_rows_independent(run, [torch.randn(70, 12), experts_of(70, 5, 3), torch.rand(70, 3)])


def test_experts_of_another_size_are_refused() -> None:
    with pytest.raises(ShapeError, match="gate_up has shape"):
        moe(
            torch.zeros(1, 4),
            torch.zeros(1, 1, dtype=torch.int64),
            torch.zeros(1, 1),
            gate_up=torch.zeros(2, 5, 4),
            down=torch.zeros(2, 4, 3),
            limit=1.0,
        )
