"""Routing on the device."""

from types import ModuleType

import pytest
import torch

from jit_kernels.route_topk import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

SHAPES = with_large(
    [(1, 3, 1), (9, 10, 3), (5, 129, 6)],
    [
        *((257, 256, 6), (64, 384, 6), (2000, 256, 8), (33, 384, 8), (65, 512, 32)),
        *((17, 256, 5), (3, 500, 9), (5, 40, 40), (4, 700, 6)),
    ],
)
pytestmark = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_the_choice_equals_the_reference(
    backend: ModuleType, tokens: int, experts: int, top_k: int
) -> None:
    # Steps of 1/16 apart, some equal: no rounding decides, the lower id does.
    logits = torch.randint(-200, 200, (tokens, experts)) / 16
    bias = torch.zeros(experts)

    got = backend.route_topk(logits, bias, top_k, 1.5)

    want = reference.route_topk(logits, bias, top_k, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_the_bias_chooses_and_does_not_weigh(
    backend: ModuleType, tokens: int, experts: int, top_k: int
) -> None:
    logits, bias = torch.randn(tokens, experts), torch.randperm(experts) * 10.0

    got = backend.route_topk(logits, bias, top_k, 2.5)

    want = reference.route_topk(logits, bias, top_k, 2.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


def test_scores_are_exact_far_out(backend: ModuleType) -> None:
    logits = torch.tensor([[-60.0, -30.0, -17.0, -10.0, -1e-3, 0.0, 1e-3, 10.0, 40.0, 90.0]]).T

    got = backend.route_topk(
        torch.cat((logits, torch.zeros_like(logits)), 1), torch.zeros(2), 2, 1.0
    )

    scores = torch.nn.functional.softplus(logits.double().cpu()).sqrt()
    zero = torch.log(torch.tensor(2.0, dtype=torch.float64, device="cpu")).sqrt()
    mine = torch.where(got[0] == 0, got[1], 0.0).sum(1, keepdim=True).cpu()
    assert_close(mine, (scores / (scores + zero)).float(), Bounds(rtol=2e-6))


def test_a_negative_bias_may_make_all_scores_negative(backend: ModuleType) -> None:
    logits, bias = torch.randn(4, 12), -torch.arange(1, 13) * 100.0

    got = backend.route_topk(logits, bias, 3, 1.0)

    assert got[0].tolist() == [[0, 1, 2]] * 4


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_hashed_weights_equal_the_reference(
    backend: ModuleType, tokens: int, experts: int, top_k: int
) -> None:
    logits = torch.randn(tokens, experts) * 4
    table = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])

    chosen, weights = backend.route_hashed(logits, table, 2.0)

    want = reference.route_hashed(logits, table, 2.0)
    assert_same_bits(chosen, want[0])
    assert_close(weights, want[1], Bounds(atol=1e-6, rtol=1e-5))


def test_experts_all_alike_are_chosen_in_order(backend: ModuleType) -> None:
    logits = torch.zeros(3, 256)
    logits[1, 100:105] = 1.0

    experts, weights = backend.route_topk(logits, torch.zeros(256), 6, 1.0)

    assert experts.tolist() == [[*range(6)], [*range(100, 105), 0], [*range(6)]]
    assert_close(weights.sum(1), torch.ones(3), Bounds(rtol=1e-6))
