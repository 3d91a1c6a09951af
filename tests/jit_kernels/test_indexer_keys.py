"""Indexer keys and queries: Hadamard, fp8, and back."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_keys import decode_keys, encode_keys, hadamard, quantise_queries
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


@pytest.mark.parametrize("width", [1, 2, 32, 128])
def test_the_transform_is_the_sylvester_matrix(width: int) -> None:
    x = torch.randn(5, 3, width)

    got = hadamard(x)

    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    assert_close(got, (x.double() @ matrix * width**-0.5).float(), Bounds(atol=1e-5))
    assert_close(hadamard(got), x, Bounds(atol=1e-5))


def test_a_width_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ShapeError, match="power of two"):
        hadamard(torch.zeros(1, 24))


def test_an_fp8_key_is_its_codes_and_one_power_of_two() -> None:
    keys = torch.randn(6, 128) * torch.logspace(-7, 3, 6).unsqueeze(1)

    rows = encode_keys(keys, record_format="fp8")

    assert rows.shape == (6, 132)
    scales = rows[:, 128:].contiguous().view(torch.float32)[:, 0]
    floor = keys.abs().amax(1).clamp(min=1e-4)
    assert_same_bits(scales, torch.exp2(torch.ceil(torch.log2(floor / 448))))
    codes = (keys / scales.unsqueeze(1)).to(torch.float8_e4m3fn)
    assert torch.equal(rows[:, :128], codes.view(torch.uint8))
    got = decode_keys(rows, record_format="fp8")
    assert_same_bits(got, codes.float() * scales.unsqueeze(1))


@pytest.mark.parametrize(
    ("record_format", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_plain_keys_are_the_numbers(record_format: str, dtype: torch.dtype) -> None:
    keys = torch.randn(3, 21)

    got = decode_keys(encode_keys(keys, record_format=record_format), record_format=record_format)

    assert_same_bits(got, keys.to(dtype).float())


def test_queries_are_rounded_per_head() -> None:
    q = torch.randn(4, 3, 32)

    values, scales = quantise_queries(q)

    assert_same_bits(values, values.to(torch.float8_e4m3fn).float())
    assert (values.abs() <= 448).all()
    assert torch.equal(scales, torch.exp2(torch.log2(scales).round()))
    assert_close(values * scales.unsqueeze(2), q, Bounds(rtol=1 / 16, atol=2e-4))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(hadamard, [torch.randn(40, 3, 64)])
    assert_rows_independent(
        lambda keys: encode_keys(keys, record_format="fp8"), [torch.randn(40, 64)]
    )
