"""A workspace filled by the device, bit by bit."""

import pytest
import torch

from jit_kernels.kv_workspace import RecordSet, reference, triton_backend
from jit_kernels.paged_rows import PageLayout
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits
from tests.testing.packed_pages import BY_2, BY_3, BY_64, some_pages

COUNTS = with_large([(), (1,), (0, 3), (5, 17, 2), (16, 0, 1)], [(127, 4096, 16384)])


def some_set(count: int, layout: PageLayout) -> RecordSet:
    """Return a set of records with holes and repeats."""
    pages, slots = some_pages(4, layout)
    named = slots[torch.randint(slots.shape[0], (count,))].to(torch.int32)
    named[2::5] = -1
    return RecordSet(pages, layout, named)


@pytest.mark.parametrize("counts", COUNTS)
def test_rows_are_the_numbers_of_the_records(counts: tuple[int, ...]) -> None:
    sets = [
        some_set(count, layout) for count, layout in zip(counts, (BY_64, BY_3, BY_2), strict=False)
    ]
    rows = sum(counts) + 3
    got = torch.full((rows, 512), torch.nan, dtype=torch.bfloat16)
    want = got.clone()

    triton_backend.fill_workspace(got, sets)

    reference.fill_workspace(want, sets)
    assert_same_bits(got, want)


def test_every_code_and_every_scale_is_read_right() -> None:
    """Records of all 254 codes that are numbers, times scales from 2^-27 to 2^20."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].repeat(2)[:448]
    scales = torch.arange(100, 148, dtype=torch.uint8).view(6, 8)
    pages = torch.full((1, BY_64.page_bytes), 255, dtype=torch.uint8)
    pages[0, : 6 * 576].view(6, 576)[:, :448] = codes
    pages[0, : 6 * 576].view(6, 576)[:, 448:] = torch.randn(6, 64).bfloat16().view(torch.uint8)
    pages[0, 64 * 576 :][: 6 * 8] = scales.flatten()
    part = RecordSet(pages, BY_64, torch.arange(6, dtype=torch.int32))
    got, want = (torch.full((6, 512), torch.nan, dtype=torch.bfloat16) for _ in range(2))

    triton_backend.fill_workspace(got, [part])

    reference.fill_workspace(want, [part])
    assert not want.isnan().any()
    assert_same_bits(got, want)
