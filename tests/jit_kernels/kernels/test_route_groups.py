"""Routing by groups on the device."""

import pytest
import torch

from jit_kernels.route_groups import reference, triton_backend
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# experts, groups, kept groups, experts of a token
GEOMETRIES = [(64, 1, 1, 6), (160, 8, 3, 6), (256, 8, 4, 8), (10, 2, 1, 3)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_experts_are_those_of_the_reference(
    geometry: tuple[int, int, int, int], biased: bool
) -> None:
    count, groups, kept, top_k = geometry
    wide = torch.randn(3, count + 3)
    logits = wide[:, :count]
    # Equal ones, and a group that is the best by a bias alone.
    logits[0] = 0.5
    bias = torch.randn(count) if biased else None
    args = (bias, top_k, groups, kept, biased, 2.5)

    got_experts, got = triton_backend.route_groups(logits, *args)

    want_experts, want = reference.route_groups(logits, *args)
    assert_same_bits(got_experts, want_experts)
    assert_close(got, want, Bounds(atol=1e-6, rtol=1e-5))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice")
def test_a_token_that_is_not_a_number_goes_to_experts_that_there_are() -> None:
    logits = torch.full((1, 12), torch.nan)

    for bias in (None, torch.zeros(12)):
        experts, _ = triton_backend.route_groups(logits, bias, 3, 3, 2, True, 1.0)
        assert bool(((experts >= 0) & (experts < 12)).all())
