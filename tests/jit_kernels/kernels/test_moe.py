"""Routed experts over bfloat16 weights on the device, and the choice of experts by softmax."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jit_kernels.biased_moe import reference as biased_reference
from jit_kernels.biased_moe import triton_backend as biased_backend
from jit_kernels.moe import reference, triton_backend
from jit_kernels.route_softmax import reference as route_reference
from jit_kernels.route_softmax import triton_backend as route_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# experts, width, inner width, chosen
SIZES = with_large([(5, 40, 24, 2)], [(16, 256, 192, 4), (128, 2048, 768, 8), (32, 2880, 2880, 4)])
LIMIT, ALPHA = 1.5, 1.702


class Mixture:
    """Experts of random bfloat16 weights."""

    def __init__(self, sizes: tuple[int, int, int, int]) -> None:
        self.count, self.width, inner, self.chosen = sizes
        gate_up = torch.randn(self.count, 2 * inner, self.width) / math.sqrt(self.width)
        down = torch.randn(self.count, self.width, inner) / math.sqrt(inner)
        self.parts: dict[str, Any] = {
            "gate_up": gate_up.bfloat16(),
            "down": down.bfloat16(),
            "limit": math.inf,
        }
        biases = torch.randn(self.count, 2 * inner), torch.randn(self.count, self.width)
        self.biased: dict[str, Any] = {
            **self.parts,
            **{"limit": LIMIT, "alpha": ALPHA, "biases": biases},
        }

    def rows(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rows, their experts and their weights."""
        experts = torch.rand(count, self.count).topk(self.chosen)[1]
        return torch.randn(count, self.width).bfloat16(), experts, torch.rand(experts.shape)


@pytest.mark.parametrize("rows", with_large([1, 9], [16, 300, 2000]))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_experts_give_what_the_reference_gives(sizes: tuple[int, int, int, int], rows: int) -> None:
    made = Mixture(sizes)
    given = made.rows(rows)

    for invariant in (False, True):
        got = triton_backend.moe(*given, **made.parts, invariant=invariant)
        want = reference.moe(*given, **made.parts, invariant=invariant)
        assert_close(got, want, Bounds(atol=0.05, rms=0.01))


@pytest.mark.parametrize("rows", with_large([1, 9], [16, 300, 2000]))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_biased_experts_give_what_their_reference_gives(
    sizes: tuple[int, int, int, int], rows: int
) -> None:
    made = Mixture(sizes)
    given = made.rows(rows)

    for invariant in (False, True):
        got = biased_backend.biased_moe(*given, **made.biased, invariant=invariant)
        want = biased_reference.biased_moe(*given, **made.biased, invariant=invariant)
        assert_close(got, want, Bounds(atol=0.05, rms=0.01))


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_added_comes_last_and_experts_of_other_ranks_give_nothing(rows: int) -> None:
    made = Mixture((5, 40, 24, 2))
    x, experts, weights = made.rows(rows)
    plus = torch.randn(rows, 40)
    alone = triton_backend.moe(x, experts, weights, **made.parts, invariant=False)

    def added() -> torch.Tensor:
        return plus

    got = triton_backend.moe(x, experts, weights, **made.parts, invariant=False, plus=added)
    assert_close(got, alone + plus, Bounds(atol=1e-5))
    experts[:, 0], weights[:, 1] = 7, 0.0
    got = triton_backend.moe(x, experts, weights, **made.parts, invariant=False)
    assert_same_bits(got, torch.zeros(rows, 40))


@pytest.mark.parametrize("biased", [False, True])
def test_an_invariant_row_has_the_same_bits_in_any_company(biased: bool) -> None:
    made = Mixture((5, 40, 24, 2))
    given = made.rows(40)
    run: Callable[..., torch.Tensor] = triton_backend.moe
    parts = made.parts
    if biased:
        run, parts = biased_backend.biased_moe, made.biased
    whole = run(*given, **parts, invariant=True)

    for first, last in ((0, 1), (3, 20), (39, 40)):
        some = slice(first, last)
        got = run(*(part[some] for part in given), **parts, invariant=True)
        assert_same_bits(got, whole[some])


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 3), (128, 8), (5, 5)])
def test_the_choice_is_that_of_the_reference(experts: int, top_k: int, normalised: bool) -> None:
    logits = torch.randn(7, experts)
    logits[1, 3] = logits[1, 1] = 9.0

    got = route_backend.route_softmax(logits, top_k, normalised)

    want = route_reference.route_softmax(logits, top_k, normalised)
    assert_same_bits(got[0], want[0])
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_token_of_nan_chooses_experts_that_there_are() -> None:
    got, _ = route_backend.route_softmax(torch.full((1, 5), torch.nan), 3, normalised=True)

    assert bool(((got >= 0) & (got < 5)).all())
