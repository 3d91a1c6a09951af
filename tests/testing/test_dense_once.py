"""Numbers of weights are worked out once, and again when the weight is another."""

from unittest.mock import patch

import torch

from jit_kernels.expert_weights import reference as expert_weights
from jit_kernels.fp8_linear import reference as fp8_linear
from tests.testing.compare import assert_same_bits
from tests.testing.dense_once import dense_once


def weight() -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp8 codes [2, 128, 128] and their scales."""
    return torch.randn(2, 128, 128).to(torch.float8_e4m3fn), torch.rand(2, 1, 1)


def test_numbers_are_those_of_the_reference_and_worked_out_once() -> None:
    codes, scales = weight()
    dense = fp8_linear.dense

    with patch.object(fp8_linear, "dense", wraps=dense) as counted, dense_once():
        for expert in (0, 1, 0, 1):
            got = expert_weights.dense_fp8(codes[expert], scales[expert])
            assert_same_bits(got, dense(codes[expert], scales[expert]))
            assert fp8_linear.dense(codes[expert], scales[expert]) is got

    assert counted.call_count == 2
    assert fp8_linear.dense is expert_weights.dense_fp8 is dense


def test_a_weight_that_is_written_to_is_worked_out_again() -> None:
    codes, scales = weight()
    with dense_once():
        before = fp8_linear.dense(codes[0], scales[0])

        scales[0] *= 2
        assert_same_bits(fp8_linear.dense(codes[0], scales[0]), before * 2)
        codes.copy_(codes.flip(0))
        assert not torch.equal(fp8_linear.dense(codes[0], scales[0]), before * 2)


def test_a_weight_made_where_another_was_has_its_own_numbers() -> None:
    with dense_once():
        for _ in range(20):
            codes, scales = weight()
            want = codes.float() * scales
            assert_same_bits(fp8_linear.dense(codes, scales), want)


def test_a_weight_whose_writes_nobody_counts_is_worked_out_each_time() -> None:
    with dense_once(), torch.inference_mode():
        codes, scales = weight()
        before = fp8_linear.dense(codes, scales)

        scales *= 2
        assert_same_bits(fp8_linear.dense(codes, scales), before * 2)
