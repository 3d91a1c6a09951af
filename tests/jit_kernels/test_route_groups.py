"""Routing by groups of experts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.route_groups import route_groups
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def route(logits: Tensor, bias: Tensor | None, **changes: Any) -> tuple[Tensor, Tensor]:
    """Route 12 experts in 4 groups, of which 2 are kept."""
    fields: dict[str, Any] = {
        "top_k": 3,
        "groups": 4,
        "kept": 2,
        "normalised": False,
        "scale": 1.0,
        **changes,
    }
    return route_groups(logits, bias, **fields)


def by_hand(compared: list[float], groups: list[float], kept: int, top_k: int) -> list[int]:
    """Return the experts of one token, of the greatest values first."""
    order = sorted(range(len(groups)), key=lambda g: -groups[g])[:kept]
    each = len(compared) // len(groups)
    inside = [e for e in range(len(compared)) if e // each in order]
    return sorted(inside, key=lambda e: -compared[e])[:top_k]


def test_without_a_bias_a_group_is_as_good_as_its_best_expert() -> None:
    logits = torch.randn(40, 12) * 2

    experts, weights = route(logits, None, scale=16.0)

    scores = logits.softmax(1)
    best = scores.view(40, 4, 3).amax(2)
    for token in range(40):
        want = by_hand(scores[token].tolist(), best[token].tolist(), 2, 3)
        assert experts[token].tolist() == want
    assert_close(weights, scores.gather(1, experts) * 16.0, Bounds(rtol=1e-5))


def test_with_a_bias_a_group_is_as_good_as_its_best_two_experts() -> None:
    logits, bias = torch.randn(40, 12), torch.randn(12) * 0.3

    experts, weights = route(logits, bias, normalised=True, scale=2.5)

    scores = logits.sigmoid()
    compared = scores + bias
    pairs = compared.view(40, 4, 3).sort(2).values[..., 1:].sum(2)
    for token in range(40):
        want = by_hand(compared[token].tolist(), pairs[token].tolist(), 2, 3)
        assert experts[token].tolist() == want
    chosen = scores.gather(1, experts)
    assert_close(weights, chosen / chosen.sum(1, keepdim=True) * 2.5, Bounds(rtol=1e-5))


def test_experts_of_a_group_that_is_not_kept_are_not_chosen_for_a_negative_score() -> None:
    logits = torch.full((1, 12), -9.0)

    experts, _ = route(logits, torch.full((12,), -1.0), kept=1)

    assert experts.tolist() == [[0, 1, 2]]


def test_one_group_is_no_limit() -> None:
    logits = torch.randn(9, 12)

    experts, weights = route(logits, None, groups=1, kept=1, normalised=True)

    assert torch.equal(experts, logits.topk(3).indices)
    assert_close(weights.sum(1), torch.ones(9), Bounds(atol=1e-6))


@pytest.mark.parametrize("biased", [False, True])
def test_a_token_has_the_same_bits_in_any_company(biased: bool) -> None:
    bias = torch.randn(30) if biased else None

    def weights(logits: Tensor) -> Tensor:
        return route(logits, bias, groups=5, normalised=True)[1]

    assert_rows_independent(weights, [torch.randn(40, 30)])


@pytest.mark.parametrize(
    ("bias", "changes", "message"),
    [
        (None, {"groups": 5}, "2 of 5 groups cannot be chosen of 12 experts"),
        (None, {"kept": 5}, "5 of 4 groups"),
        (None, {"top_k": 7}, "top_k is 7, of 2 groups of 3 experts"),
        (torch.zeros(12), {"groups": 12, "kept": 12}, "of 12 groups of 1 experts"),
        (torch.zeros(11), {}, "bias has shape"),
    ],
)
def test_what_does_not_fit_is_refused(
    bias: Tensor | None, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        route(torch.zeros(2, 12), bias, **changes)
