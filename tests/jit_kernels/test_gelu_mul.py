"""A gate of GELU."""

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.gelu_mul import gelu_mul
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent


@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (7, 63), (16, 129)])
def test_the_gate_is_that_of_torch(rows: int, inner: int) -> None:
    x = torch.randn(rows, 2 * inner) * 3

    want = F.gelu(x[:, :inner].double(), approximate="tanh") * x[:, inner:].double()

    assert_close(gelu_mul(x), want.float(), Bounds(atol=1e-6, rtol=1e-5))


def test_a_gate_far_below_zero_gives_zero() -> None:
    assert_close(gelu_mul(torch.tensor([[-1e5, 3.0]])), torch.zeros(1, 1), Bounds(atol=1e-30))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(gelu_mul, [torch.randn(40, 74) * 3])
