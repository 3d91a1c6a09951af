"""Routed experts over plain numbers, against their formula."""

import pytest
import torch
import torch.nn.functional as F

from layers.experts.contract import ExpertSizes
from layers.experts.plain import PlainExperts
from layers.linear.contract import Rows
from layers.parallel.shares import Share, whole
from tests.testing.compare import Bounds, assert_close
from tests.testing.tiny_model import plain_weights

CPU = torch.device("cpu")
SIZES = ExpertSizes(whole(5), 42, whole(27), chosen=2, limit=2.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sum_runs_over_the_chosen_experts_and_what_is_added(dtype: torch.dtype) -> None:
    layer = PlainExperts(SIZES, dtype=dtype, device=CPU)
    named = plain_weights(layer.named_weights("ffn."))
    for weight in named.values():
        weight.normal_(std=weight.shape[1] ** -0.5)
    x, shared = torch.randn(3, SIZES.width).to(dtype), torch.randn(3, SIZES.width)
    experts, weights = torch.tensor([[4, 0], [2, 3], [1, 2]]), torch.rand(3, 2)

    got = layer(x, Rows(x), experts, weights, lambda: shared)

    def expert(number: int, row: torch.Tensor) -> torch.Tensor:
        w1, w2, w3 = (named[f"ffn.experts.{number}.w{i}.weight"].double() for i in (1, 2, 3))
        gate, up = (w1 @ row).clamp(max=SIZES.limit), (w3 @ row).clamp(-SIZES.limit, SIZES.limit)
        return w2 @ (F.silu(gate) * up)

    want = shared.double()
    for t in range(3):
        for e, share in zip(experts[t].tolist(), weights[t].double(), strict=True):
            want[t] += share * expert(e, x[t].double())
    assert got.dtype == torch.float32
    bounds = Bounds(atol=1e-5) if dtype == torch.float32 else Bounds(atol=0.1, rms=0.01)
    assert_close(got.float(), want.float(), bounds)


def test_experts_have_the_numbers_that_they_have_in_the_layer() -> None:
    layer = PlainExperts(
        ExpertSizes(Share(6, 2, 8), 8, whole(4), chosen=2, limit=1.0),
        dtype=torch.float32,
        device=CPU,
    )

    named = plain_weights(layer.named_weights("ffn."))

    assert named.keys() == {f"ffn.experts.{e}.w{i}.weight" for e in (6, 7) for i in (1, 2, 3)}
    assert named["ffn.experts.7.w1.weight"].shape == (4, 8)
    assert named["ffn.experts.7.w2.weight"].shape == (8, 4)
