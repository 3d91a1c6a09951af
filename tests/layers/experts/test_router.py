"""Learned and tabled routing."""

import pytest
import torch
from torch import Tensor

from jit_kernels.route_topk import route_hashed, route_topk
from layers.experts.router import Router
from layers.linear.plain import PlainLinear
from tests.testing.tiny_model import plain_weights

CPU = torch.device("cpu")
EXPERTS, WIDTH, IDS, SCALE = 5, 16, 97, 1.5


def made(hashed_ids: int) -> tuple[Router, dict[str, Tensor]]:
    """Return a router over a plain gate, and its weights."""
    gate = PlainLinear(WIDTH, {"gate": EXPERTS}, dtype=torch.float32, device=CPU)
    router = Router(gate, EXPERTS, chosen=2, scale=SCALE, hashed_ids=hashed_ids, device=CPU)
    return router, plain_weights(router.named_weights("ffn."))


def test_a_table_routes_by_token_id() -> None:
    router, named = made(IDS)
    table = named["ffn.gate.tid2eid"]
    table.copy_(torch.rand(IDS, EXPERTS).argsort(1)[:, :2])
    named["ffn.gate.weight"].normal_()
    ids = torch.tensor([4, 90, 4])

    experts, weights = router(torch.randn(3, WIDTH), ids)

    assert named.keys() == {"ffn.gate.weight", "ffn.gate.tid2eid"}
    assert table.dtype == torch.int64
    assert torch.equal(experts, table[ids])
    assert torch.allclose(weights.sum(1), torch.full((3,), SCALE))


def test_without_a_table_scores_and_bias_choose() -> None:
    router, named = made(0)
    named["ffn.gate.bias"].copy_(torch.tensor([0.0, 5.0, 0.0, 9.0, 0.0]))

    experts, weights = router(torch.zeros(2, WIDTH), torch.tensor([1, 2]))

    assert named.keys() == {"ffn.gate.weight", "ffn.gate.bias"}
    assert experts.tolist() == [[3, 1]] * 2
    assert torch.allclose(weights, torch.full((2, 2), SCALE / 2))


@pytest.mark.parametrize("hashed_ids", [IDS, 0])
def test_logits_are_those_of_the_gate(hashed_ids: int) -> None:
    router, named = made(hashed_ids)
    for name, weight in named.items():
        weight.copy_(
            torch.randint(EXPERTS, weight.shape) if "tid2eid" in name else torch.randn(weight.shape)
        )
    x, ids = torch.randn(7, WIDTH), torch.randint(IDS, (7,))

    experts, weights = router(x, ids)

    logits = x @ named["ffn.gate.weight"].T
    if hashed_ids:
        want = route_hashed(logits, named["ffn.gate.tid2eid"], ids, scale=SCALE)
    else:
        want = route_topk(logits, named["ffn.gate.bias"], top_k=2, scale=SCALE)
    assert torch.equal(experts, want[0])
    assert torch.allclose(weights, want[1])
