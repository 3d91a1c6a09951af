"""Attention over latent records, against the formula and against grouped attention."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.grouped_attention import ChunkRows, grouped_attention
from jit_kernels.latent_attention import latent_attention
from jit_kernels.latent_attention.reference import latent_attention as in_torch
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("device")

PAGE = 16
SCALE = 0.3
# heads, channels of a record, channels that are values
GEOMETRIES = [(16, 72, 64), (5, 33, 20), (128, 24, 24), (1, 40, 1)]


def rows_of(step: list[tuple[int, int]]) -> ChunkRows:
    """Return rows of (first position, tokens) on pages of their own."""
    start, count = (torch.tensor(column) for column in zip(*step, strict=True))
    columns = int(-(-(start + count).max() // PAGE))
    table = torch.randperm(len(step) * columns).view(len(step), columns) + 1
    row = torch.arange(len(step)).repeat_interleave(count)
    position = torch.cat([torch.arange(first, first + n) for first, n in step])
    return ChunkRows(table.int(), start, count, row, position)


def records_of(rows: ChunkRows, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return pages in which everything behind the rows' tokens is NaN."""
    pages = torch.full((int(rows.page_table.max()) + 1, PAGE, width), torch.nan, dtype=dtype)
    ends = (rows.start + rows.count).tolist()
    for table, end in zip(rows.page_table.long(), ends, strict=True):
        place = torch.arange(end)
        pages[table[place // PAGE], place % PAGE] = torch.randn(end, width).to(dtype)
    return pages


def expected(q: Tensor, records: Tensor, rows: ChunkRows, values: int) -> Tensor:
    """Return what the formula says, token by token."""
    out = torch.empty((*q.shape[:2], values))
    for t, (row, position) in enumerate(zip(rows.row, rows.position, strict=True)):
        read = records[rows.page_table[row].long()].flatten(0, 1)[: position + 1].float()
        out[t] = (q[t] @ read.T * SCALE).softmax(1) @ read[:, :values]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_each_token_reads_all_positions_up_to_its_own(
    geometry: tuple[int, int, int], dtype: torch.dtype
) -> None:
    heads, width, values = geometry
    rows = rows_of([(0, 35), (150, 3), (16, 1)])
    q, records = torch.randn(39, heads, width), records_of(rows, width, dtype)

    got = latent_attention(q, records, rows, values=values, scale=SCALE)

    want = expected(q, records, rows, values)
    assert_close(got, want, Bounds(atol=1e-5))
    assert_close(in_torch(q, records, rows, values, SCALE), want, Bounds(atol=1e-5))


def test_it_is_attention_of_one_head_of_keys_that_are_values_too() -> None:
    rows = rows_of([(0, 20), (70, 2)])
    q, records = torch.randn(22, 6, 40), records_of(rows, 40)

    whole = grouped_attention(q, records.unsqueeze(2), records.unsqueeze(2), rows, scale=SCALE)

    for values in (40, 31, 8):
        got = latent_attention(q, records, rows, values=values, scale=SCALE)
        assert_same_bits(got, whole[..., :values].contiguous())


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_token_has_the_same_bits_in_any_chunk(geometry: tuple[int, int, int]) -> None:
    heads, width, values = geometry
    rows = rows_of([(0, 90)])
    q, records = torch.randn(90, heads, width), records_of(rows, width)
    whole = latent_attention(q, records, rows, values=values, scale=SCALE)
    reference = in_torch(q, records, rows, values, SCALE)

    for first, count in ((0, 3), (17, 31), (89, 1), (64, 26)):
        part = slice(first, first + count)
        start, length = torch.tensor([first]), torch.tensor([count])
        some = replace(
            rows, start=start, count=length, row=rows.row[part], position=rows.position[part]
        )
        got = latent_attention(q[part], records, some, values=values, scale=SCALE)
        assert_same_bits(got, whole[part])
        assert_same_bits(in_torch(q[part], records, some, values, SCALE), reference[part])


def test_a_page_that_is_none_is_refused() -> None:
    rows = rows_of([(0, 40)])
    records = records_of(rows, 8)
    rows.page_table[0, 1] = 99

    with pytest.raises(IndexError):
        latent_attention(torch.zeros(40, 2, 8), records, rows, values=4, scale=SCALE)


@pytest.mark.parametrize(
    ("q", "values", "message"),
    [
        (torch.zeros(40, 129, 8), 4, "129 heads"),
        (torch.zeros(40, 2, 8), 9, "9 of 8 channels"),
        (torch.zeros(40, 2, 6), 4, "records has shape"),
        (torch.zeros(39, 2, 8), 4, "row has shape"),
        (torch.zeros(40, 8, 2).transpose(1, 2), 4, "strides"),
    ],
)
def test_what_does_not_fit_is_refused(q: Tensor, values: int, message: str) -> None:
    rows = rows_of([(0, 40)])

    with pytest.raises(ShapeError, match=message):
        latent_attention(q, records_of(rows, 8), rows, values=values, scale=SCALE)
