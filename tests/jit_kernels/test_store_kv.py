"""Encoding and storing at once."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_keys import encode_keys, hadamard
from jit_kernels.kv_records import decode_records, encode_records
from jit_kernels.paged_rows import PageLayout, gather_rows, store_rows
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.store_kv import norm_rope_store, store_keys, store_records
from tests.jit_kernels.test_rope import rotation
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("device")

RECORD = PageLayout(page_rows=3, data_bytes=96, scale_bytes=8, page_bytes=384)
KEY = PageLayout(page_rows=4, data_bytes=32, scale_bytes=4, page_bytes=160)


def poisoned(layout: PageLayout) -> torch.Tensor:
    """Return three pages that hold no number."""
    return torch.full((3, layout.page_bytes), 255, dtype=torch.uint8)


@pytest.mark.parametrize(("record_format", "channel_bytes"), [("fp8", 0), ("bf16", 2), ("fp32", 4)])
def test_records_are_encoded_and_stored(record_format: str, channel_bytes: int) -> None:
    layout = PageLayout(3, 80 * channel_bytes, 0, 240 * channel_bytes) if channel_bytes else RECORD
    kv, slots = torch.randn(4, 80), torch.tensor([7, 0, 5, 3])
    pages, want = poisoned(layout), poisoned(layout)

    store_records(pages, slots, kv, layout, record_format=record_format, rope_channels=16)

    rows = encode_records(kv, record_format=record_format, rope_channels=16)
    store_rows(want, slots, rows, layout)
    assert_same_bits(pages, want)


def test_rows_of_a_negative_slot_are_left_out() -> None:
    pages, slots = poisoned(RECORD), torch.tensor([-1, 2, -1])

    store_records(pages, slots, torch.randn(3, 80), RECORD, record_format="fp8", rope_channels=16)

    assert (gather_rows(pages, torch.tensor([0, 1, 3, 8]), RECORD) == 255).all()
    assert (gather_rows(pages, torch.tensor([2]), RECORD) != 255).any()


def test_records_can_be_normed_and_rotated_on_the_way() -> None:
    x, weight, turn = torch.randn(5, 80), torch.randn(80), rotation(torch.randn(5, 8))
    pages, slots, before = poisoned(RECORD), torch.tensor([8, 1, 0, 4, 6]), x.clone()

    norm_rope_store(
        pages, slots, x, RECORD, weight=weight, rotation=turn, eps=1e-6, record_format="fp8"
    )

    rows = gather_rows(pages, slots, RECORD)
    got = decode_records(rows, record_format="fp8", channels=80, rope_channels=16)
    want = rope(rms_norm(x, weight, eps=1e-6).unsqueeze(1), turn).squeeze(1)
    assert_close(got, want, Bounds(rtol=1 / 14, atol=2e-4))
    assert_same_bits(x, before)


def test_keys_are_transformed_encoded_and_stored() -> None:
    keys, slots = torch.randn(4, 32), torch.tensor([11, 0, -1, 3])
    pages, want = poisoned(KEY), poisoned(KEY)

    store_keys(pages, slots, keys, KEY, record_format="fp8")

    kept = slots >= 0
    rows = encode_keys(hadamard(keys[kept]), record_format="fp8")
    store_rows(want, slots[kept], rows, KEY)
    assert_same_bits(pages, want)


def test_plain_keys_are_not_transformed() -> None:
    layout, keys = PageLayout(2, 74, 0, 148), torch.randn(2, 37)
    pages = torch.zeros(1, 148, dtype=torch.uint8)

    store_keys(pages, torch.tensor([1, 0]), keys, layout, record_format="bf16")

    assert_same_bits(pages.view(torch.bfloat16).view(2, 37), keys.flip(0).bfloat16())


def test_pages_of_another_layout_are_refused() -> None:
    slots, kv = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 80)
    with pytest.raises(ShapeError, match="do not fit"):
        store_records(poisoned(KEY), slots, kv, KEY, record_format="fp8", rope_channels=16)
    with pytest.raises(ShapeError, match="pages has shape"):
        store_records(poisoned(KEY), slots, kv, RECORD, record_format="fp8", rope_channels=16)
    with pytest.raises(ShapeError, match="power of two"):
        store_keys(poisoned(KEY), slots, kv, KEY, record_format="fp8")
    with pytest.raises(ShapeError, match="whole pairs"):
        norm_rope_store(
            poisoned(RECORD),
            slots,
            kv[:, :79],
            RECORD,
            weight=kv[0, :79],
            rotation=torch.zeros(1, 2, 16),
            eps=1e-6,
            record_format="fp8",
        )
