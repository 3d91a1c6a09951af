"""Routing of tokens to experts."""

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.checks import ShapeError
from jit_kernels.route_topk import route_hashed, route_topk
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 3, 1), (9, 10, 3), (5, 129, 6)])
def test_scores_choose_with_the_bias_and_weigh_without(
    tokens: int, experts: int, top_k: int
) -> None:
    logits, bias = torch.randn(tokens, experts) * 4, torch.randn(experts)

    chosen, weights = route_topk(logits, bias, top_k=top_k, scale=1.5)

    scores = F.softplus(logits.double()).sqrt()
    for t in range(tokens):
        ranked = sorted(range(experts), key=lambda e: (-float(scores[t, e] + bias[e]), e))
        assert chosen[t].tolist() == ranked[:top_k]
        picked = scores[t, chosen[t]]
        assert_close(weights[t], (1.5 * picked / picked.sum()).float(), Bounds(atol=1e-6))


def test_ties_go_to_the_lower_expert() -> None:
    chosen, _ = route_topk(torch.zeros(2, 40), torch.zeros(40), top_k=5, scale=1.0)

    assert chosen.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_table_decides_and_the_scores_only_weigh() -> None:
    logits, table = torch.randn(4, 6), torch.tensor([[5, 0], [1, 2], [3, 1]])
    ids = torch.tensor([2, 0, 2, 1])

    chosen, weights = route_hashed(logits, table, ids, scale=2.0)

    assert torch.equal(chosen, table[ids])
    picked = F.softplus(logits).sqrt().gather(1, chosen)
    assert_close(weights, 2.0 * picked / picked.sum(1, keepdim=True), Bounds(atol=1e-6))


def test_logits_far_out_stay_finite() -> None:
    logits = torch.tensor([[-1e4, 1e4, -80.0, 80.0], [-1e4, -1e4, -1e4, -1e4]])

    _, weights = route_topk(logits, torch.zeros(4), top_k=2, scale=1.0)

    assert weights.isfinite().all()


def test_a_token_has_the_same_bits_in_any_company() -> None:
    bias = torch.randn(27)

    def weights(logits: torch.Tensor) -> torch.Tensor:
        return route_topk(logits, bias, top_k=4, scale=1.5)[1]

    assert_rows_independent(weights, [torch.randn(40, 27)])


def test_a_table_with_gaps_is_refused() -> None:
    table, ids = torch.zeros(3, 4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)

    with pytest.raises(ShapeError, match="contiguous"):
        route_hashed(torch.zeros(2, 5), table[:, :2], ids, scale=1.0)


def test_a_bias_of_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="bias has shape"):
        route_topk(torch.zeros(2, 5), torch.zeros(4), top_k=1, scale=1.0)
