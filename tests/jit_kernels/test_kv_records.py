"""KV records byte by byte."""

import math

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.kv_records import decode_records, encode_records, packed_record_bytes
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


def encode(kv: torch.Tensor) -> torch.Tensor:
    """Return packed records of 448 + 64 channels."""
    return encode_records(kv, record_format="fp8", rope_channels=64)


def test_a_packed_record_is_584_bytes() -> None:
    assert packed_record_bytes(512, 64) == (576, 8)
    assert encode(torch.randn(3, 512)).shape == (3, 584)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_bytes_are_what_the_format_says(dtype: torch.dtype) -> None:
    kv = (torch.randn(5, 512) * torch.logspace(-6, 4, 512)).to(dtype)
    kv[4] = 0.0

    rows = encode(kv)

    assert_same_bits(rows[:, 448:576].contiguous().view(torch.bfloat16), kv[:, 448:].bfloat16())
    assert (rows[:, 583] == 0).all()
    for row, record in zip(kv.float(), rows, strict=True):
        for block in range(7):
            values = row[64 * block : 64 * (block + 1)]
            amax = max(float(values.abs().max()), 1e-4)
            exponent = math.ceil(math.log2(amax / 448.0))
            assert int(record[576 + block]) == exponent + 127
            codes = (values * 2.0**-exponent).to(torch.float8_e4m3fn).view(torch.uint8)
            assert torch.equal(record[64 * block : 64 * (block + 1)], codes)


def test_a_block_maximum_on_a_power_of_two_keeps_its_scale() -> None:
    kv = torch.zeros(2, 512)
    kv[0, 0], kv[1, 0] = 448.0, torch.nextafter(torch.tensor(448.0), torch.tensor(500.0))

    rows = encode(kv)

    assert rows[:, 576].tolist() == [127, 128]
    assert (
        float(decode_records(rows, record_format="fp8", channels=512, rope_channels=64)[0, 0])
        == 448.0
    )


def test_packed_records_come_back_within_the_format_precision() -> None:
    kv = torch.randn(40, 512)

    got = decode_records(encode(kv), record_format="fp8", channels=512, rope_channels=64)

    # e4m3 keeps three bits after the first: half a step is 1/16 of a number, 2^-10 of the scale.
    assert_close(got[:, :448], kv[:, :448], Bounds(rtol=1 / 16, atol=2.0**-9 / 64))
    assert_same_bits(got[:, 448:], kv[:, 448:].bfloat16().float())


def test_records_that_went_through_once_go_through_unchanged() -> None:
    once = decode_records(
        encode(torch.randn(9, 512)), record_format="fp8", channels=512, rope_channels=64
    )

    again = decode_records(encode(once), record_format="fp8", channels=512, rope_channels=64)

    assert_same_bits(again, once)


@pytest.mark.parametrize(
    ("record_format", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_plain_records_are_the_numbers(record_format: str, dtype: torch.dtype) -> None:
    kv = torch.randn(6, 37)

    rows = encode_records(kv, record_format=record_format, rope_channels=8)

    assert rows.shape == (6, 37 * dtype.itemsize)
    got = decode_records(rows, record_format=record_format, channels=37, rope_channels=8)
    assert_same_bits(got, kv.to(dtype).float())


def test_poisoned_records_stay_in_their_rows() -> None:
    rows = encode(torch.randn(4, 512))
    clean = decode_records(rows, record_format="fp8", channels=512, rope_channels=64)
    rows[2] = 255

    got = decode_records(rows, record_format="fp8", channels=512, rope_channels=64)

    assert got[2].isnan().all()
    assert_same_bits(got[[0, 1, 3]], clean[[0, 1, 3]])


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(encode, [torch.randn(40, 512)])


def test_channels_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 64 unrotated channels, got 48"):
        encode_records(torch.zeros(1, 64), record_format="fp8", rope_channels=16)
    with pytest.raises(ShapeError, match="rows has shape"):
        decode_records(
            torch.zeros(1, 583, dtype=torch.uint8),
            record_format="fp8",
            channels=512,
            rope_channels=64,
        )
