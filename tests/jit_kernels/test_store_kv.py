"""Norming, rotating, encoding and storing at once."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.kv_records import decode_records
from jit_kernels.paged_rows import PageLayout, gather_rows
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.store_kv import norm_rope_store
from tests.jit_kernels.test_rope import rotation
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("device")

RECORD = PageLayout(page_rows=3, data_bytes=96, scale_bytes=8, page_bytes=384)
OTHER = PageLayout(page_rows=4, data_bytes=32, scale_bytes=4, page_bytes=160)
NEAR = {
    "fp8": Bounds(rtol=1 / 14, atol=2e-4),
    "bf16": Bounds(rtol=2.0**-8, atol=1e-5),
    "fp32": Bounds(rtol=1e-5, atol=1e-5),
}


def poisoned(layout: PageLayout) -> torch.Tensor:
    """Return three pages that hold no number."""
    return torch.full((3, layout.page_bytes), 255, dtype=torch.uint8)


def store(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    record_format: str = "fp8",
) -> torch.Tensor:
    """Norm, rotate by anything and store; return what records should say."""
    weight, turn = torch.randn(x.shape[1]), rotation(torch.randn(x.shape[0], 8))
    norm_rope_store(
        pages, slots, x, layout, weight=weight, rotation=turn, eps=1e-6, record_format=record_format
    )
    return rope(rms_norm(x, weight, eps=1e-6).unsqueeze(1), turn).squeeze(1)


@pytest.mark.parametrize(("record_format", "channel_bytes"), [("fp8", 0), ("bf16", 2), ("fp32", 4)])
def test_records_are_normed_rotated_encoded_and_stored(
    record_format: str, channel_bytes: int
) -> None:
    layout = PageLayout(3, 80 * channel_bytes, 0, 240 * channel_bytes) if channel_bytes else RECORD
    x, slots = torch.randn(5, 80), torch.tensor([8, 1, 0, 4, 6])
    pages, before = poisoned(layout), x.clone()

    want = store(pages, slots, x, layout, record_format)

    rows = gather_rows(pages, slots, layout)
    got = decode_records(rows, record_format=record_format, channels=80, rope_channels=16)
    assert_close(got, want, NEAR[record_format])
    assert (gather_rows(pages, torch.tensor([2, 3, 5, 7]), layout) == 255).all()
    assert_same_bits(x, before)


def test_rows_of_a_negative_slot_are_left_out() -> None:
    pages = poisoned(RECORD)

    store(pages, torch.tensor([-1, 2, -1]), torch.randn(3, 80), RECORD)

    assert (gather_rows(pages, torch.tensor([0, 1, 3, 8]), RECORD) == 255).all()
    assert (gather_rows(pages, torch.tensor([2]), RECORD) != 255).any()


def test_pages_of_another_layout_are_refused() -> None:
    slots, x = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 80)
    with pytest.raises(ShapeError, match="do not fit"):
        store(poisoned(OTHER), slots, x, OTHER)
    with pytest.raises(ShapeError, match="pages has shape"):
        store(poisoned(OTHER), slots, x, RECORD)
    with pytest.raises(ShapeError, match="whole pairs"):
        store(poisoned(RECORD), slots, x[:, :79], RECORD)
