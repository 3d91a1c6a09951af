"""Experts for training are the server's; and what is told of the routing."""

import torch

from jit_kernels.moe import moe
from jit_kernels.route_topk import route_hashed, route_topk
from layers.models.deepseek_v4.config import parse_config
from layers.models.deepseek_v4.model import angles
from tests.testing.compare import Bounds, assert_close
from tests.testing.recall_rows import VOCAB, small_config
from tests.train.experts import experts
from tests.train.named import Named
from tests.train.parameters import first_parameters
from tests.train.places import Places, places_of
from tests.train.regions import Regions

CONFIG = parse_config(small_config(swiglu_limit=0.5))


def _weights(layer: int) -> Named:
    named = first_parameters(CONFIG, seed=0)
    for name, tensor in named.items():
        if name.endswith("gate.bias"):
            tensor.normal_()
    return Named(named, f"layers.{layer}.ffn.")


def _places() -> Places:
    tokens = torch.randint(VOCAB, (2, 128))
    return places_of(tokens, CONFIG, angles(CONFIG, torch.device("cpu")))


def test_the_sum_is_that_of_the_chosen_experts_and_the_shared_one() -> None:
    places, x = _places(), torch.randn(256, CONFIG.hidden_size)
    for layer in (0, 1):
        weights = _weights(layer)
        logits = x @ weights["gate.weight"].T
        if layer == 0:
            table = weights["gate.tid2eid"]
            chosen, share = route_hashed(logits, table, places.tokens, scale=1.5)
        else:
            chosen, share = route_topk(logits, weights["gate.bias"], top_k=2, scale=1.5)

        got, report = experts(x, weights, places, config=CONFIG, run=Regions())

        def stacked(weights: Named, name: str, *parts: str) -> torch.Tensor:
            return torch.stack([weights[f"{part}.{name}.weight"] for part in parts])

        routed = [f"experts.{number}" for number in range(4)]
        want = torch.zeros_like(x)
        shared = torch.zeros(256, 1, dtype=torch.int64), torch.ones(256, 1)
        for parts, (who, weight) in ((routed, (chosen, share)), (["shared_experts"], shared)):
            up = torch.cat((stacked(weights, "w1", *parts), stacked(weights, "w3", *parts)), 1)
            down = stacked(weights, "w2", *parts)
            want += moe(x, who, weight, gate_up=up, down=down, limit=0.5)
        assert_close(got, want, Bounds(atol=1e-5, rtol=1e-4), what=f"layer {layer}")
        counts = torch.bincount(chosen.flatten(), minlength=4)
        assert_close(report.load, counts / 512, Bounds(atol=1e-6))


def test_even_routing_has_balance_one_and_a_crowd_more() -> None:
    places, weights = _places(), _weights(1)
    even = torch.zeros(256, CONFIG.hidden_size)
    _, report = experts(even, weights, places, config=CONFIG, run=Regions())
    assert abs(float(report.balance) - 1.0) < 1e-5

    crowd = weights["gate.weight"][:2].sum(0).expand(256, -1) * 20
    weights["gate.bias"].zero_()
    _, report = experts(crowd, weights, places, config=CONFIG, run=Regions())
    assert float(report.balance) > 1.2
