"""A bias for each part of a product."""

import torch
from torch import Tensor

from layers.linear.biased import BiasedLinear
from layers.linear.plain import PlainLinear
from layers.parallel.shares import Share, Size
from layers.weights.part import Part
from tests.testing.compare import Bounds, assert_close

CPU = torch.device("cpu")


def layer(parts: dict[str, Size]) -> BiasedLinear:
    """Return a layer of 8 inputs."""
    return BiasedLinear(PlainLinear(8, parts, dtype=torch.float32, device=CPU), parts, CPU)


def test_each_part_has_a_weight_and_a_bias() -> None:
    made = layer({"a": 3, "b": 2})
    found = dict(made.named_weights("x."))
    assert list(found) == ["x.a.weight", "x.b.weight", "x.a.bias", "x.b.bias"]
    for view in found.values():
        assert isinstance(view, Tensor)
        view.copy_(torch.randn_like(view))

    x = torch.randn(4, 8)
    got = made(made.rows(x))

    halves = [x @ found[f"x.{name}.weight"].T + found[f"x.{name}.bias"] for name in "ab"]  # type: ignore[operator]
    assert_close(got, torch.cat(halves, 1), Bounds(atol=1e-5))


def test_a_rank_keeps_its_share_of_a_bias() -> None:
    found = dict(layer({"a": Share(2, 2, 4)}).named_weights(""))["a.bias"]

    assert isinstance(found, Part)
    assert (found.shape, found.cut) == ((4,), (slice(2, 4),))
