"""Clamped SwiGLU."""

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.silu_mul import silu_mul
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (7, 63), (16, 129)])
def test_the_gate_is_clamped_above_and_the_other_on_both_sides(rows: int, inner: int) -> None:
    x = torch.randn(rows, 2 * inner) * 5

    got = silu_mul(x, limit=2.5)

    gate, up = x[:, :inner], x[:, inner:]
    want = F.silu(gate.double().clamp(max=2.5)) * up.double().clamp(-2.5, 2.5)
    assert_close(got, want.float(), Bounds(atol=1e-6, rtol=1e-5))


def test_a_gate_far_below_zero_gives_zero() -> None:
    got = silu_mul(torch.tensor([[-1e30, 3.0], [-200.0, 3.0]]), limit=10.0)

    assert_close(got, torch.zeros(2, 1), Bounds(atol=1e-30))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(lambda x: silu_mul(x, limit=2.0), [torch.randn(40, 74) * 3])


def test_bfloat16_is_computed_in_float32() -> None:
    x = torch.randn(5, 22).bfloat16()

    wide = silu_mul(x, limit=2.0, out_dtype=torch.float32)

    assert_same_bits(silu_mul(x, limit=2.0), wide.bfloat16())
