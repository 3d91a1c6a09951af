"""A product whose width ranks share."""

import torch
from torch import Tensor

from layers.kinds import PlainKinds
from layers.linear.summed import SummedLinear
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.shares import Size
from layers.weights.part import Part
from tests.testing.compare import Bounds, assert_close
from tests.testing.thread_ranks import ThreadRanks, in_ranks

CPU = torch.device("cpu")
WEIGHT, BIAS, X = torch.arange(24.0).view(3, 8) / 8, torch.tensor([1.0, 2, 3]), torch.ones(2, 8)


def filled(width: Size, ranks: Ranks) -> SummedLinear:
    """Return a layer with a bias, and the numbers above."""
    kinds = PlainKinds(CPU, torch.float32)
    made = SummedLinear(kinds, width, "o", 3, ranks=ranks, bias=True)
    for name, target in made.named_weights("x."):
        whole = {"x.o.weight": WEIGHT, "x.o.bias": BIAS}[name]
        if isinstance(target, Part):
            assert isinstance(target.target, Tensor)
            target.target.copy_(whole[target.cut])
        else:
            assert isinstance(target, Tensor)
            target.copy_(whole)
    return made


def test_a_bias_is_added_once_whatever_the_ranks() -> None:
    want = X @ WEIGHT.T + BIAS

    def run(ranks: ThreadRanks) -> Tensor:
        share = ranks.shares.inner(8, blocks=False)
        return filled(share, ranks).of_rows(X[:, share.part])

    assert_close(filled(8, OneRank()).of_rows(X), want, Bounds(atol=1e-5))
    for got in in_ranks(2, run):
        assert_close(got, want, Bounds(atol=1e-5))


def test_a_part_of_a_gated_product_has_no_bias() -> None:
    made, hidden = filled(8, OneRank()), torch.randn(2, 16)

    assert_close(made.of_gated(hidden), made.part_of_gated(hidden) + BIAS, Bounds(atol=1e-6))
