"""Pages of packed records with poison wherever no record was put, and sets of keys in them."""

import torch
from torch import Tensor

from jit_kernels.kv_records.reference import encode_records
from jit_kernels.paged_attention import PagedKeys
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows

WIDTH, ROPE = 512, 64
BY_64 = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
BY_3 = PageLayout(page_rows=3, data_bytes=576, scale_bytes=8, page_bytes=2304)
BY_2 = PageLayout(page_rows=2, data_bytes=576, scale_bytes=8, page_bytes=1728)
# A slot that would be read far outside of any pages.
OUTSIDE = 1 << 30


def some_records(count: int) -> Tensor:
    """Return [count, 584] uint8: records whose blocks of 64 channels differ in size."""
    size = torch.logspace(-2, 1, WIDTH // 64, base=2.0).repeat_interleave(64)
    return encode_records(torch.randn(count, WIDTH) * size.flip(0), "fp8", ROPE)


def poisoned_pages(units: int, layout: PageLayout) -> Tensor:
    """Return pages of which every byte is NaN, as code and as scale."""
    return torch.full((units, layout.page_bytes), 255, dtype=torch.uint8)


def some_pages(units: int, layout: PageLayout) -> tuple[Tensor, Tensor]:
    """Return (pages, half of the slots of pages 1.., int64, in any order): only they hold records.

    Page 0 is the dummy.
    """
    pages = poisoned_pages(units, layout)
    records = (units - 1) * layout.page_rows
    slots = torch.randperm(records)[: max(1, records // 2)] + layout.page_rows
    store_rows(pages, slots, some_records(slots.shape[0]), layout)
    return pages, slots


def some_keys(rows: int, columns: int, layout: PageLayout, *, lengths: bool) -> PagedKeys:
    """Return a set with holes anywhere; every fifth row names no key at all.

    With `lengths`, row 0 is empty unless it is alone, row 1 full, and rests are rubbish.
    """
    pages, slots = some_pages(max(3, columns // layout.page_rows), layout)
    named = slots[torch.randint(slots.shape[0], (rows, columns))].to(torch.int32)
    named[torch.rand(rows, columns) < 0.2] = -1
    if not lengths:
        named[3::5] = -1
        return PagedKeys(pages, layout, named)
    counts = torch.randint(columns + 1, (rows,), dtype=torch.int32)
    counts[0] = 0 if rows > 1 else columns - 1
    counts[1:2] = columns
    named[torch.arange(columns) >= counts.unsqueeze(1)] = OUTSIDE
    return PagedKeys(pages, layout, named, counts)


def taken(keys: PagedKeys, pick: Tensor) -> PagedKeys:
    """Return the keys of some rows."""
    lengths = None if keys.lengths is None else keys.lengths[pick]
    return PagedKeys(keys.pages, keys.layout, keys.slots[pick], lengths)
