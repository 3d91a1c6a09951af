"""Routing by softmax."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.route_softmax import route_softmax
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def test_weights_are_the_softmax_of_all_or_of_the_chosen() -> None:
    logits = torch.randn(7, 16) * 3
    best = logits.topk(4)

    experts, weights = route_softmax(logits, top_k=4, normalised=False)
    same, normalised = route_softmax(logits, top_k=4, normalised=True)

    assert torch.equal(experts, best.indices)
    assert torch.equal(same, experts)
    assert_close(weights, logits.softmax(1).gather(1, experts), Bounds(atol=1e-6))
    assert_close(normalised, best.values.softmax(1), Bounds(atol=1e-6))


def test_ties_go_to_the_lower_id() -> None:
    experts, _ = route_softmax(torch.zeros(2, 5), top_k=3, normalised=True)

    assert experts.tolist() == [[0, 1, 2]] * 2


def test_a_token_has_the_same_bits_in_any_company() -> None:
    def weights(logits: torch.Tensor) -> torch.Tensor:
        return route_softmax(logits, top_k=3, normalised=False)[1]

    assert_rows_independent(weights, [torch.randn(40, 21)])


@pytest.mark.parametrize("top_k", [0, 6])
def test_more_experts_than_there_are_is_refused(top_k: int) -> None:
    with pytest.raises(ShapeError, match="of 5 experts"):
        route_softmax(torch.zeros(2, 5), top_k=top_k, normalised=True)
