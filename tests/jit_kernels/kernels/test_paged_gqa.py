"""Attention over bfloat16 pages on the device: Triton's, and FlashAttention 3 where it is there."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from jit_kernels.paged_gqa import PagedRows, reference, triton_backend
from jit_kernels.paged_gqa.triton_parts import parts_of
from jit_kernels.vendor_library import why_no_fa3
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

Attend = Callable[..., Tensor]
# heads, heads of keys, channels
GEOMETRIES = with_large([(4, 2, 64), (7, 1, 24)], [(32, 8, 128), (64, 8, 64), (8, 4, 192)])
# (length, tokens) of each row
STEPS = with_large(
    [[(1, 1)], [(70, 3), (0, 1), (33, 33)]],
    [[(4000, 1), (1, 1), (300, 1)], [(700, 700), (513, 1), (2000, 129)], [(5000, 16)] * 20],
)
PAGE, GARBAGE = 256, 300.0
BOUNDS = Bounds(atol=0.03, rms=0.01)


@pytest.fixture(params=["triton", "fa3"])
def attend(request: pytest.FixtureRequest) -> Attend:
    """Return a backend."""
    if request.param == "triton":
        return triton_backend.paged_gqa
    if (reason := why_no_fa3()) is not None:
        pytest.skip(reason)
    from jit_kernels.paged_gqa import fa3_backend

    return fa3_backend.paged_gqa


class Case:
    """Random rows over scattered pages in which all that nobody reads is `GARBAGE`."""

    def __init__(
        self, geometry: tuple[int, int, int], step: Sequence[tuple[int, int]], *, page: int = PAGE
    ) -> None:
        self.heads, groups, self.width = geometry
        length, count = zip(*step, strict=True)
        columns = max(1, -(-max(length) // page))
        table = torch.randperm(len(step) * columns).view(len(step), columns) + 1
        shape = (len(step) * columns + 1, page, groups, self.width)
        self.keys = torch.full(shape, GARBAGE, dtype=torch.bfloat16)
        self.values = self.keys.clone()
        for pages, end in zip(table, length, strict=True):
            place = torch.arange(end)
            for pool in (self.keys, self.values):
                noise = torch.randn(end, groups, self.width).to(torch.bfloat16)
                pool[pages[place // page], place % page] = noise
        first = torch.tensor([0, *count]).cumsum(0).int()
        alone = None if max(count) == 1 else first
        self.rows = PagedRows(
            table.int(), torch.tensor(length, dtype=torch.int32), alone, max(count)
        )
        self.q = torch.randn(int(first[-1]), self.heads, self.width).to(torch.bfloat16)

    def by(
        self,
        attend: Attend,
        *,
        window: int = 0,
        sink: Tensor | None = None,
        invariant: bool = False,
    ) -> Tensor:
        """Return what a backend makes of it."""
        scale = 1 / math.sqrt(self.width)
        return attend(self.q, self.keys, self.values, self.rows, scale, window, sink, invariant)


@pytest.mark.parametrize("kind", ["all", "window", "sink"])
@pytest.mark.parametrize("step", STEPS, ids=len)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_it_is_the_reference(
    geometry: tuple[int, int, int], step: list[tuple[int, int]], kind: str, attend: Attend
) -> None:
    if attend is not triton_backend.paged_gqa and geometry[2] % 64:
        pytest.skip("FlashAttention 3 has no such heads")
    made = Case(geometry, step)
    window = 0 if kind == "all" else 29
    sink = torch.randn(made.heads).to(torch.bfloat16) if kind == "sink" else None

    got = made.by(attend, window=window, sink=sink)

    assert_close(got, made.by(reference.paged_gqa, window=window, sink=sink), BOUNDS)


def test_few_rows_share_their_keys_among_programs(attend: Attend) -> None:
    made = Case((4, 1, 64), [(600, 1), (30, 1)])
    sink = torch.randn(4).to(torch.bfloat16)
    if attend is triton_backend.paged_gqa:
        assert parts_of(2, 3 * PAGE) > 1

    for given in (None, sink):
        got = made.by(attend, sink=given)
        assert_close(got, made.by(reference.paged_gqa, sink=given), BOUNDS)


def test_an_invariant_token_has_the_same_bits_alone_decoded_and_in_chunks(attend: Attend) -> None:
    made = Case((2, 1, 64), [(150, 150), (70, 5)])
    whole = made.by(attend, invariant=True)
    table, every = made.rows.page_table, made.q

    for stop, count in ((150, 1), (150, 17), (64, 64), (1, 1), (90, 33)):
        first = torch.tensor([0, count], dtype=torch.int32)
        made.rows = PagedRows(
            table[:1].contiguous(),
            torch.tensor([stop], dtype=torch.int32),
            None if count == 1 else first,
            count,
        )
        made.q = every[stop - count : stop].contiguous()
        got = made.by(attend, invariant=True)
        assert_same_bits(got, whole[stop - count : stop], what=f"{count} tokens up to {stop}")


def test_a_window_has_the_same_bits_from_any_border(attend: Attend) -> None:
    """As decoding rows and chunks have it: a table of small pages from before the window on."""
    window, page, border = 128, 64, 128
    length, heads = with_large([180], [420])[-1], with_large([2], [8])[-1]
    made = Case((heads, 1, 64), [(length, length)], page=page)
    sink = torch.randn(heads).to(torch.bfloat16)
    whole = made.by(attend, window=window, sink=sink, invariant=True)
    want = made.by(reference.paged_gqa, window=window, sink=sink)
    table, every = made.rows.page_table, made.q

    assert_close(whole, want, BOUNDS)
    chunks = with_large([(180, 1), (129, 1), (160, 30)], [(420, 1), (257, 1), (420, 120), (64, 64)])
    for stop, count in chunks:
        first = max(0, stop - count + 1 - window) // border * border
        columns = max(4, -(-(stop - first) // page))
        part = table[:, first // page :][:, :columns]
        made.rows = PagedRows(
            torch.nn.functional.pad(part, (0, columns - part.shape[1])).contiguous(),
            torch.tensor([stop - first], dtype=torch.int32),
            None if count == 1 else torch.tensor([0, count], dtype=torch.int32),
            count,
        )
        made.q = every[stop - count : stop].contiguous()
        got = made.by(attend, window=window, sink=sink, invariant=True)
        assert_same_bits(got, whole[stop - count : stop], what=f"{count} tokens up to {stop}")
