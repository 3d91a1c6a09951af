"""Latent records byte by byte."""

import math

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.latent_records import (
    decode_latents,
    encode_latents,
    latent_record_bytes,
    reference,
)
from tests.testing.compare import Bounds, assert_close, assert_same_bits


def encode(records: torch.Tensor) -> torch.Tensor:
    """Return packed records whose last 64 channels are rotated."""
    return encode_latents(records, record_format="fp8", rope_channels=64)


def decode(rows: torch.Tensor) -> torch.Tensor:
    """Return packed records of 512 + 64 channels as numbers."""
    return decode_latents(rows, record_format="fp8", channels=576, rope_channels=64)


def test_a_packed_record_is_656_bytes_in_the_order_of_flash_mla() -> None:
    records = torch.randn(5, 576) * torch.logspace(-6, 4, 576)
    records[4] = 0.0

    rows = encode(records)

    assert rows.shape == (5, 656)
    assert_same_bits(rows[:, 528:].contiguous().view(torch.bfloat16), records[:, 512:].bfloat16())
    scales = rows[:, 512:528].contiguous().view(torch.float32)
    for values, scale, row in zip(records, scales, rows, strict=True):
        for block in range(4):
            part = slice(128 * block, 128 * (block + 1))
            amax = max(float(values[part].abs().max()), 1e-4)
            assert float(scale[block]) == 2.0 ** math.ceil(math.log2(amax / 448.0))
            codes = (values[part] / scale[block]).to(torch.float8_e4m3fn).view(torch.uint8)
            assert_same_bits(row[part], codes)


def test_packed_records_come_back_within_the_format_precision() -> None:
    records = torch.randn(40, 576)

    once = decode(encode(records))

    # e4m3 keeps three bits after the first: half a step is 1/16 of a number, 2^-10 of the scale.
    assert_close(once[:, :512], records[:, :512], Bounds(rtol=1 / 16, atol=2.0**-9 / 64))
    assert_same_bits(once[:, 512:], records[:, 512:].bfloat16().float())
    assert_same_bits(decode(encode(once)), once)
    assert_same_bits(once, reference.decode_latents(encode(records), "fp8", 576, 64))


@pytest.mark.parametrize(
    ("record_format", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_plain_records_are_the_numbers(record_format: str, dtype: torch.dtype) -> None:
    records = torch.randn(6, 37)

    rows = encode_latents(records, record_format=record_format, rope_channels=8)

    assert rows.shape == (6, 37 * dtype.itemsize)
    got = decode_latents(rows, record_format=record_format, channels=37, rope_channels=8)
    assert_same_bits(got, records.to(dtype).float())


def test_poisoned_records_stay_in_their_rows() -> None:
    rows = encode(torch.randn(4, 576))
    want = decode(rows)
    rows[1] = 255

    got = decode(rows)

    assert bool(got[1].isnan().all())
    assert_same_bits(got[[0, 2, 3]], want[[0, 2, 3]])


def test_widths_without_a_packed_form_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 128 unrotated channels, got 448"):
        encode(torch.randn(2, 512))
    with pytest.raises(ShapeError, match="got 0"):
        latent_record_bytes(64, record_format="fp8", rope_channels=64)
    with pytest.raises(ShapeError, match="rows"):
        decode(torch.zeros((2, 655), dtype=torch.uint8))
