"""Exchanges of one rank."""

import torch

from layers.parallel.collectives import Collectives
from layers.parallel.shares import Shares


def test_the_sum_of_one_rank_is_its_own() -> None:
    partial = torch.randn(3)

    assert torch.equal(Collectives(Shares()).all_reduce(partial), partial)
