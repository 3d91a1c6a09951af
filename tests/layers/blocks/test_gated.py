"""SwiGLU between a norm and a residual."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layers.blocks.gated import Gated
from layers.blocks.norm import RmsNorm
from layers.kinds import PlainKinds
from layers.parallel.ranks import OneRank
from tests.testing.compare import Bounds, assert_close

CPU = torch.device("cpu")


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_formula(bias: bool) -> None:
    made = Gated(8, 20, PlainKinds(CPU, torch.float32), OneRank(), bias=bias)
    found: dict[str, Tensor] = {}
    for name, view in made.named_weights(""):
        assert isinstance(view, Tensor)
        found[name] = view.copy_(torch.randn_like(view))
    h, norm = torch.randn(5, 8), RmsNorm(8, eps=1e-6, name="n", device=CPU)

    def product(x: Tensor, name: str) -> Tensor:
        return F.linear(x, found[f"{name}.weight"], found.get(f"{name}.bias"))

    x = norm(h)
    want = product(F.silu(product(x, "gate_proj")) * product(x, "up_proj"), "down_proj")
    assert len(found) == (6 if bias else 3)
    assert_close(made(norm(h)), want, Bounds(atol=1e-4))
    part = made.part_of(x) + (found["down_proj.bias"] if bias else 0.0)
    assert_close(part, want, Bounds(atol=1e-4))
