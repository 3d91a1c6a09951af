"""Queries normed head by head, then rotated."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from tests.jit_kernels.test_rope import rotation
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def test_a_norm_and_a_rotation_after_each_other_give_the_same() -> None:
    q, turn = torch.randn(5, 3, 12), rotation(torch.randn(5, 2))
    before = q.clone()

    got = q_norm_rope(q, turn, eps=1e-6)

    want = rope(rms_norm(q, None, eps=1e-6).contiguous(), turn)
    assert_close(got, want, Bounds(atol=1e-5))
    assert_same_bits(q, before)


def test_the_result_is_in_the_dtype_asked_for() -> None:
    q, turn = torch.randn(4, 2, 8), rotation(torch.randn(4, 4))

    got = q_norm_rope(q, turn, eps=1e-6, out_dtype=torch.bfloat16)

    assert got.dtype == torch.bfloat16
    assert_close(got, q_norm_rope(q, turn, eps=1e-6).bfloat16(), Bounds(rtol=0.02, atol=0.02))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    def op(q: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        return q_norm_rope(q, turn, eps=1e-6)

    assert_rows_independent(op, [torch.randn(40, 3, 20), rotation(torch.randn(40, 3))])


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ShapeError, match="whole pairs"):
        q_norm_rope(torch.zeros(1, 1, 7), torch.zeros(1, 2, 4), eps=1e-6)
    with pytest.raises(ShapeError, match="rotation has shape"):
        q_norm_rope(torch.zeros(2, 1, 8), torch.zeros(1, 2, 4), eps=1e-6)
