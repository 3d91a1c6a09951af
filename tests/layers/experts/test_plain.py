"""Routed and shared experts of a layer."""

import pytest
import torch
import torch.nn.functional as F

from layers.experts.plain import Experts
from layers.parallel.shares import Shards
from tests.testing.compare import Bounds, assert_close
from tests.testing.tiny_model import CONFIG

CPU = torch.device("cpu")


@pytest.mark.parametrize("layer", [0, 2])
def test_the_sum_runs_over_the_chosen_experts_and_the_shared_one(layer: int) -> None:
    experts = Experts(CONFIG, layer, shards=Shards(), dtype=torch.float32, device=CPU)
    named = dict(experts.named_weights("ffn."))
    for name, weight in named.items():
        if name.endswith("tid2eid"):
            weight.copy_(torch.rand(CONFIG.vocab_size, 5).argsort(1)[:, :2])
        else:
            weight.normal_()
    x, ids = torch.randn(3, CONFIG.hidden_size), torch.tensor([5, 6, 7])

    got = experts(x, ids)

    def expert(name: str, row: torch.Tensor) -> torch.Tensor:
        w1, w2, w3 = (named[f"ffn.{name}.w{i}.weight"].double() for i in (1, 2, 3))
        limit = CONFIG.swiglu_limit
        return w2 @ (F.silu((w1 @ row).clamp(max=limit)) * (w3 @ row).clamp(-limit, limit))

    for t in range(3):
        row = x[t].double()
        scores = F.softplus(named["ffn.gate.weight"].double() @ row).sqrt()
        if layer == 0:
            chosen = named["ffn.gate.tid2eid"][ids[t]].tolist()
        else:
            chosen = (scores + named["ffn.gate.bias"].double()).topk(2)[1].tolist()
        total = scores[chosen].sum()
        want = expert("shared_experts", row)
        for e in chosen:
            want = want + CONFIG.routed_scaling_factor * scores[e] / total * expert(
                f"experts.{e}", row
            )
        assert_close(got[t], want.float(), Bounds(atol=1e-3, rtol=1e-4))
