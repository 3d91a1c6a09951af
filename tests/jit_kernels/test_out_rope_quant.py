"""Attention's result, turned back and rounded."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.fp8_linear import fp8_linear_grouped
from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.quant_fp8 import quantise_rows
from jit_kernels.rope import rope
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import turns

pytestmark = pytest.mark.usefixtures("device")


def test_it_is_a_rotation_back_and_a_rounding() -> None:
    out, rotation = torch.randn(5, 6, 128), turns(torch.arange(5) * 9, 64)
    before = out.clone()

    codes, scales = out_rope_quant(out, rotation, groups=3)

    want, want_scales = quantise_rows(rope(out.clone(), rotation, inverse=True).flatten(1))
    assert codes.shape == (5, 3, 256)
    assert float((codes.flatten(1).float() != want.float()).float().mean()) < 2e-3
    assert_same_bits(scales.flatten(1), want_scales)
    assert scales.stride() == (1, 2 * 8, 8)
    assert_same_bits(out, before)


def test_the_grouped_product_takes_it_as_it_is() -> None:
    out, rotation = torch.randn(3, 4, 128), turns(torch.arange(3), 64)
    weight = (torch.randn(2, 16, 256) * 0.5).to(torch.float8_e4m3fn)
    weight_scales = torch.ones(2, 1, 2)

    rows = out_rope_quant(out, rotation, groups=2)

    got = fp8_linear_grouped(*rows, weight, weight_scales)
    turned = rope(out.clone(), rotation, inverse=True).view(3, 2, 256)
    want = torch.einsum("tgk,gnk->tgn", turned, weight.float())
    assert_close(got.float(), want, Bounds(atol=1.0, cosine=0.998))


def test_heads_that_make_no_groups_are_refused() -> None:
    rotation = torch.zeros(1, 2, 64)
    with pytest.raises(ShapeError, match="do not make 4 groups"):
        out_rope_quant(torch.zeros(1, 6, 128), rotation, groups=4)
    with pytest.raises(ShapeError, match="do not make 1 groups"):
        out_rope_quant(torch.zeros(1, 6, 96), rotation, groups=1)
