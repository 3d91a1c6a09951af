"""Records copied from pages to pages."""

import dataclasses

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.copy_records import copy_records
from jit_kernels.kv_workspace import RecordSet
from jit_kernels.paged_rows import PageLayout, gather_rows
from tests.testing.compare import assert_same_bits
from tests.testing.packed_pages import BY_3, BY_64, poisoned_pages, some_pages


def some_copy(count: int, layout: PageLayout, other: PageLayout) -> tuple[RecordSet, RecordSet]:
    """Return records and where they go; some are missing on either side."""
    pages, slots = some_pages(4 + 2 * count // layout.page_rows, layout)
    source = slots[torch.randint(slots.shape[0], (count,))].to(torch.int32)
    units = count // other.page_rows + 2
    target = torch.randperm(units * other.page_rows)[:count].to(torch.int32)
    source[1::7] = -1
    target[2::5] = -1
    aim = RecordSet(poisoned_pages(units, other), other, target)
    return RecordSet(pages, layout, source), aim


def test_a_record_lies_where_it_was_sent(device: torch.device) -> None:
    source, target = some_copy(20, BY_64, BY_3)

    copy_records(source, target)

    sent = (source.slots >= 0) & (target.slots >= 0)
    assert 10 < int(sent.sum()) < 20
    got = gather_rows(target.pages, target.slots[sent].to(torch.int64), BY_3)
    want = gather_rows(source.pages, source.slots[sent].to(torch.int64), BY_64)
    assert_same_bits(got, want)
    touched = (target.pages != 255).sum()
    assert int(touched) == int((want != 255).sum())


def test_sets_that_do_not_match_are_refused(device: torch.device) -> None:
    source, target = some_copy(5, BY_64, BY_3)

    with pytest.raises(ShapeError, match=r"target.slots has shape \[4\], expected \[5\]"):
        copy_records(source, dataclasses.replace(target, slots=target.slots[:4]))
    with pytest.raises(ShapeError, match=r"source.pages has shape"):
        copy_records(dataclasses.replace(source, layout=BY_3), target)
    with pytest.raises(ShapeError, match="target: pages and slots must be contiguous"):
        copy_records(source, dataclasses.replace(target, pages=target.pages[::2]))
