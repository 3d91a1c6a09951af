"""Attention of grouped heads over pages, against a product of all keys at once."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.grouped_attention import ChunkRows, grouped_attention
from jit_kernels.grouped_attention.reference import grouped_attention as in_torch
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("device")

PAGE = 16
SCALE = 0.3
# heads, heads of keys, channels
GEOMETRIES = [(9, 3, 64), (4, 4, 20), (8, 1, 33), (40, 1, 8)]
# (first position, tokens) of each row
STEPS = [[(0, 1)], [(0, 70), (300, 5), (16, 1)], [(15, 17), (31, 1), (64, 64)]]
WINDOWS = [1, 10, 80]


@dataclass
class Case:
    """Pages of rows, in which everything that no token reads is NaN."""

    q: Tensor
    keys: Tensor
    values: Tensor
    rows: ChunkRows
    sinks: Tensor | None = None

    def attended(self) -> Tensor:
        """Return what the op makes of it."""
        return grouped_attention(
            self.q, self.keys, self.values, self.rows, scale=SCALE, sinks=self.sinks
        )

    def in_torch(self) -> Tensor:
        """Return what the reference makes of it."""
        return in_torch(self.q, self.keys, self.values, self.rows, SCALE, self.sinks)

    def expected(self) -> Tensor:
        """Return what the formula says, token by token."""
        rows, share = self.rows, self.q.shape[1] // self.keys.shape[2]
        out = torch.empty_like(self.q)
        for t, (row, position) in enumerate(zip(rows.row, rows.position, strict=True)):
            pages = rows.page_table[row].long()
            since = 0 if rows.since is None else int(rows.since[t])
            keys, values = (
                pool[pages].flatten(0, 1)[since : position + 1].float().repeat_interleave(share, 1)
                for pool in (self.keys, self.values)
            )
            logits = torch.einsum("hd,shd->hs", self.q[t], keys) * SCALE
            if self.sinks is not None:
                logits = torch.cat((logits, self.sinks.unsqueeze(1)), 1)
            weights = logits.softmax(1)[:, : len(keys)]
            out[t] = torch.einsum("hs,shd->hd", weights, values)
        return out

    def of(self, wanted: list[tuple[int, int, int]]) -> "Case":
        """Return tokens of it as another step: (row, first position, tokens) of each row."""
        rows, picks = self.rows, list[Tensor]()
        for row, start, count in wanted:
            inside = (rows.row == row) & (rows.position >= start) & (rows.position < start + count)
            picks.append(inside.nonzero()[:, 0])
        pick = torch.cat(picks)
        start = torch.tensor([start for _, start, _ in wanted])
        count = torch.tensor([count for _, _, count in wanted])
        row = torch.arange(len(wanted)).repeat_interleave(count)
        table = rows.page_table[[row for row, _, _ in wanted]]
        since = None if rows.since is None else rows.since[pick]
        some = ChunkRows(table, start, count, row, rows.position[pick], since)
        return replace(self, q=self.q[pick], rows=some)


def case(
    geometry: tuple[int, int, int],
    step: list[tuple[int, int]],
    dtype: torch.dtype = torch.float32,
    *,
    window: int | None = None,
) -> Case:
    """Return random tokens, keys and values; with a window there are sinks, too."""
    heads, groups, width = geometry
    start, count = (torch.tensor(column) for column in zip(*step, strict=True))
    columns = int(-(-(start + count).max() // PAGE))
    table = torch.randperm(len(step) * columns).view(len(step), columns) + 1
    keys = torch.full((int(table.max()) + 1, PAGE, groups, width), torch.nan, dtype=dtype)
    values = keys.clone()
    for pages, first, end in zip(table, start.tolist(), (start + count).tolist(), strict=True):
        place = torch.arange(max(0, first + 1 - window) if window else 0, end)
        for pool in (keys, values):
            pool[pages[place // PAGE], place % PAGE] = torch.randn(len(place), groups, width).to(
                dtype
            )
    row = torch.arange(len(step)).repeat_interleave(count)
    position = torch.cat([torch.arange(first, first + n) for first, n in step])
    since = (position + 1 - window).clamp(min=0) if window else None
    rows = ChunkRows(table.int(), start, count, row, position, since)
    sinks = torch.randn(heads) * 3 if window else None
    return Case(torch.randn(len(row), heads, width), keys, values, rows, sinks)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("step", STEPS, ids=["one", "mixed", "borders"])
@pytest.mark.parametrize("geometry", GEOMETRIES[::2])
def test_a_token_of_a_window_reads_its_last_positions_and_a_sink(
    geometry: tuple[int, int, int], step: list[tuple[int, int]], window: int
) -> None:
    made = case(geometry, step, window=window)

    assert_close(made.attended(), made.expected(), Bounds(atol=1e-5))
    assert_close(made.in_torch(), made.expected(), Bounds(atol=1e-5))
    without = replace(made, sinks=None)
    assert_close(without.attended(), without.expected(), Bounds(atol=1e-5))
    assert float((without.attended() - made.attended()).abs().amax()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", STEPS, ids=["one", "mixed", "borders"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_each_token_reads_all_positions_up_to_its_own(
    geometry: tuple[int, int, int], step: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    made = case(geometry, step, dtype)

    assert_close(made.attended(), made.expected(), Bounds(atol=1e-5))
    assert_close(made.in_torch(), made.expected(), Bounds(atol=1e-5))


@pytest.mark.parametrize("window", [None, *WINDOWS])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_token_has_the_same_bits_in_any_chunk_and_company(
    geometry: tuple[int, int, int], window: int | None
) -> None:
    whole = case(geometry, [(0, 90), (20, 40)], window=window)
    out, reference = whole.attended(), whole.in_torch()

    for wanted in (
        [(0, 0, 3), (1, 25, 17)],
        [(1, 59, 1), (0, 89, 1), (0, 64, 1)],
        [(0, 33, 57)],
        [(0, 7, 9), (0, 16, 1), (1, 20, 40)],
    ):
        some = whole.of(wanted)
        want = torch.cat([out[_tokens(whole, *part)] for part in wanted])
        assert_same_bits(some.attended(), want)
        same = torch.cat([reference[_tokens(whole, *part)] for part in wanted])
        assert_same_bits(some.in_torch(), same)


def _tokens(made: Case, row: int, start: int, count: int) -> Tensor:
    rows = made.rows
    inside = (rows.row == row) & (rows.position >= start) & (rows.position < start + count)
    return inside.nonzero()[:, 0]


def test_a_token_does_not_read_what_later_ones_of_its_chunk_left() -> None:
    made = case((6, 2, 16), [(0, 40)])
    before = made.attended()
    last = made.rows.page_table[0, 39 // PAGE]
    made.values[last, 39 % PAGE] = torch.nan

    assert_same_bits(made.attended()[:39], before[:39])
    assert bool(made.attended()[39].isnan().all())


def test_queries_may_lie_in_wider_rows() -> None:
    made = case((6, 2, 16), [(0, 40)])
    wide = torch.cat((made.q, torch.randn(40, 4, 16)), 1)

    assert_same_bits(replace(made, q=wide[:, :6]).attended(), made.attended())


def test_a_page_that_is_none_is_refused() -> None:
    made = case((6, 2, 16), [(0, 40)])
    made.rows.page_table[0, 1] = 99

    with pytest.raises(IndexError):
        made.attended()


@pytest.mark.parametrize("since", [-1, 8])
def test_a_token_that_does_not_read_itself_is_refused(since: int) -> None:
    made = case((6, 2, 16), [(0, 40)], window=5)
    assert made.rows.since is not None
    made.rows.since[7] = since

    with pytest.raises(IndexError):
        made.attended()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sinks": torch.zeros(5)}, "sinks has shape"),
        ({"q": torch.zeros(40, 5, 16)}, "cannot share"),
        ({"q": torch.zeros(40, 6, 8)}, "keys has shape"),
        ({"q": torch.zeros(39, 6, 16)}, "row has shape"),
        ({"values": torch.zeros(9, PAGE, 2, 16)}, "values has shape"),
        ({"q": torch.zeros(40, 16, 6).transpose(1, 2)}, "strides"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], message: str) -> None:
    made = case((6, 2, 16), [(0, 40)])

    with pytest.raises(ShapeError, match=message):
        replace(made, **change).attended()
