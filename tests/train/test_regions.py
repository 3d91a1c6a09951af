"""Regions run as they are, or compiled to the same numbers."""

import shutil

import pytest
import torch
from torch import Tensor

from tests.train.regions import Regions


def _chain(x: Tensor, factor: float) -> Tensor:
    return (x * factor).sin().sum(-1)


def test_regions_that_are_not_compiled_are_the_functions_themselves() -> None:
    assert Regions()(_chain) is _chain


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_regions_have_the_same_values_and_gradients() -> None:
    run = Regions(compiled=True)
    assert run(_chain) is run(_chain)
    for length in (5, 9):
        x = torch.randn(3, length, requires_grad=True)
        (want,) = torch.autograd.grad(_chain(x, 0.7).sum(), x)
        (got,) = torch.autograd.grad(run(_chain, any_length=True)(x, 0.7).sum(), x)
        torch.testing.assert_close(got, want)
