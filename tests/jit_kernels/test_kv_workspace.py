"""A workspace filled from pages, against the numbers of each record."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.kv_records import decode_records
from jit_kernels.kv_workspace import RecordSet, fill_workspace
from jit_kernels.paged_rows import gather_rows
from tests.testing.compare import assert_same_bits
from tests.testing.packed_pages import BY_3, BY_64, some_pages


def test_sets_follow_each_other(device: torch.device) -> None:
    sets: list[RecordSet] = []
    want = torch.full((20, 512), 7.0)
    first = 0
    for layout, count in ((BY_64, 9), (BY_3, 0), (BY_3, 4)):
        pages, slots = some_pages(6, layout)
        slots = slots[:count]
        sets.append(RecordSet(pages, layout, slots.to(torch.int32)))
        rows = gather_rows(pages, slots, layout)
        numbers = decode_records(rows, record_format="fp8", channels=512, rope_channels=64)
        want[first : first + count] = numbers
        first += count
    got = torch.full((20, 512), 7.0).bfloat16()

    fill_workspace(got, sets)

    assert_same_bits(got.float(), want)


def test_no_record_is_a_row_of_zeros(device: torch.device) -> None:
    pages, _ = some_pages(3, BY_64)
    got = torch.full((2, 512), torch.nan).bfloat16()

    fill_workspace(got, [RecordSet(pages, BY_64, torch.tensor([-1, -1], dtype=torch.int32))])

    assert_same_bits(got, torch.zeros_like(got))


def test_sets_that_do_not_fit_are_refused(device: torch.device) -> None:
    pages, slots = some_pages(3, BY_64)
    part = RecordSet(pages, BY_64, slots[:5].to(torch.int32))
    out = torch.zeros(9, 512).bfloat16()

    with pytest.raises(ShapeError, match=r"2 sets of 10 rows do not fit out \[9, 512\]"):
        fill_workspace(out, [part, part])
    with pytest.raises(ShapeError, match="4 sets"):
        fill_workspace(out.repeat(4, 1), [part] * 4)
    with pytest.raises(ShapeError, match=r"slots is torch\.int64"):
        fill_workspace(out, [RecordSet(pages, BY_64, slots[:5])])
    with pytest.raises(ShapeError, match=r"pages has shape"):
        fill_workspace(out, [RecordSet(pages, BY_3, part.slots)])
