"""The variants give one result, and cost what the arithmetic says."""

import torch

from tests.bench.mla_variants.prompts import prefill
from tests.bench.mla_variants.variants import SHAPES, Module, Shape, faults

SMALL = Shape(hidden=48, heads=3, query=32, plain=16, turned=8, value=12, latent=24)


def test_all_variants_give_what_cached_keys_and_values_give() -> None:
    module = Module(SMALL, torch.float32, "cpu")

    for norm, worst in faults(module, 4, 50).values():
        assert max(norm, worst) < 1e-5
    prefill(SMALL, 5, 300, torch.float32)


def test_costs_of_v2_are_those_of_the_note() -> None:
    # Source: families.md of the project's notes, 3.3.
    v2, lite = SHAPES["v2"], SHAPES["v2_lite"]

    assert v2.costs("CD", 2) == (81_920, 81_920, 0)
    assert v2.costs("CC", 2)[:2] == (1_152, 33_554_432 + 81_920)
    assert v2.costs("A_CC_ME", 2) == (1_152, 278_528, 33_554_432)
    assert lite.costs("CD", 2)[:2] == (10_240, 10_240)
    assert lite.costs("A_CC", 2)[:2] == (1_152, 34_816)
