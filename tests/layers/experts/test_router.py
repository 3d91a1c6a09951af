"""Learned and tabled routing."""

import pytest
import torch

from jit_kernels.bf16_linear import bf16_linear
from layers.experts.router import Router
from tests.testing.tiny_model import CONFIG

CPU = torch.device("cpu")


def test_first_layers_route_by_token_id() -> None:
    router = Router(CONFIG, 0, CPU)
    named = dict(router.named_weights("gate."))
    named["gate.tid2eid"].copy_(torch.rand(CONFIG.vocab_size, 5).argsort(1)[:, :2])
    ids = torch.tensor([4, 90, 4])

    experts, weights = router(torch.randn(3, CONFIG.n_routed_experts), ids)

    assert set(named) == {"gate.tid2eid"}
    assert named["gate.tid2eid"].dtype == torch.int64
    assert torch.equal(experts, named["gate.tid2eid"][ids])
    assert torch.allclose(weights.sum(1), torch.full((3,), CONFIG.routed_scaling_factor))


def test_later_layers_route_by_score_and_bias() -> None:
    router = Router(CONFIG, 1, CPU)
    named = dict(router.named_weights("gate."))
    named["gate.bias"].copy_(torch.tensor([0.0, 5.0, 0.0, 9.0, 0.0]))

    experts, weights = router(torch.zeros(2, CONFIG.n_routed_experts), torch.tensor([1, 2]))

    assert set(named) == {"gate.bias"}
    assert experts.tolist() == [[3, 1]] * 2
    assert torch.allclose(weights, torch.full((2, 2), CONFIG.routed_scaling_factor / 2))


@pytest.mark.parametrize("layer", [0, 1])
def test_rows_and_a_gate_give_what_logits_do(layer: int) -> None:
    router, count = Router(CONFIG, layer, CPU), CONFIG.n_routed_experts
    for name, weight in router.named_weights("gate."):
        weight.copy_(torch.randint(count, weight.shape) if "tid2eid" in name else torch.rand(count))
    x, gate = torch.randn(7, 16).bfloat16(), torch.randn(count, 16).bfloat16()
    ids = torch.randint(CONFIG.vocab_size, (7,))

    got = router.of(x, gate, ids)

    want = router(bf16_linear(x, gate), ids)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
