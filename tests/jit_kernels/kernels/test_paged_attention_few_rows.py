"""Attention of few rows by teams of blocks, on a device: every way to divide a row."""

import pytest
import torch
from torch import Tensor

from jit_kernels.cuda_device import why_no_nvcc
from jit_kernels.paged_attention import PagedKeys, SplitPlan, reference
from jit_kernels.paged_rows import PageLayout
from jit_kernels.vendor_library import why_no_flash_mla
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.packed_pages import BY_2, BY_3, BY_64, OUTSIDE, some_keys

REASON = why_no_flash_mla() or why_no_nvcc()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=str(REASON))]
SCALE = 512**-0.5
BOUNDS = Bounds(atol=2e-2, rtol=2e-2, cosine=0.9999, rms=1e-2)


def attend(
    q: Tensor, window: PagedKeys, extra: PagedKeys | None, sink: Tensor, teams: int
) -> Tensor:
    """Attend by so many teams a row."""
    from jit_kernels.paged_attention import few_rows_backend

    return few_rows_backend.attend(q, window, extra, sink, SCALE, teams)


def chosen(q: Tensor, window: PagedKeys, extra: PagedKeys | None, sink: Tensor) -> Tensor:
    """Attend as the backend does."""
    from jit_kernels.paged_attention import few_rows_backend

    return few_rows_backend.paged_attention(q, window, extra, sink, SCALE, SplitPlan(), False)


def goal(q: Tensor, window: PagedKeys, extra: PagedKeys | None, sink: Tensor) -> Tensor:
    """Return what the reference gives."""
    want = reference.paged_attention(q, window, extra, sink, SCALE, SplitPlan(), True)
    assert not want.isnan().any()
    return want


def queries(rows: int, heads: int) -> tuple[Tensor, Tensor]:
    """Return queries and sinks."""
    return torch.randn(rows, heads, 512).bfloat16(), torch.randn(heads)


def cut(keys: PagedKeys, lengths: list[int]) -> PagedKeys:
    """Return the keys with these lengths, and rubbish after them."""
    counts = torch.tensor(lengths, dtype=torch.int32)
    late = torch.arange(keys.slots.shape[1]) >= counts.unsqueeze(1)
    return PagedKeys(keys.pages, keys.layout, keys.slots.masked_fill(late, OUTSIDE), counts)


@pytest.mark.parametrize("heads", [64, 5])
@pytest.mark.parametrize(
    ("rows", "extra", "teams"),
    [
        (1, 0, 1),
        (1, 64, 1),
        (1, 128, 1),
        (3, 192, 2),
        (1, 512, 3),
        (2, 512, 2),
        (2, 512, 1),
        (1, 1216, 6),
        (1, 2112, 9),
        (1, 3136, 13),
        (1, 4352, 18),
        (1, 7552, 30),
        (1, 8064, 32),
        (40, 64, 1),
        (40, 320, 2),
    ],
)
def test_attention_equals_the_reference(rows: int, extra: int, teams: int, heads: int) -> None:
    """Teams of one to four tiles, one round and several, even and odd numbers of teams."""
    q, sink = queries(rows, heads)
    window = some_keys(rows, 128, BY_64, lengths=False)
    more = some_keys(rows, extra, BY_2, lengths=True) if extra else None

    got = attend(q, window, more, sink, teams)

    assert_close(got, goal(q, window, more, sink), BOUNDS)


@pytest.mark.parametrize("layout", [BY_64, BY_3, BY_2], ids=lambda layout: str(layout.page_rows))
@pytest.mark.parametrize("teams", [1, 2, 4])
def test_lengths_end_anywhere_in_a_tile(layout: PageLayout, teams: int) -> None:
    lengths = [0, 1, 63, 64, 65, 127, 128, 500]
    rows = len(lengths)
    q, sink = queries(rows, 64)
    window = cut(some_keys(rows, 128, BY_64, lengths=False), [128, 0, 64, 65, 1, 0, 127, 128])
    extra = cut(some_keys(rows, 512, layout, lengths=False), lengths)

    got = attend(q, window, extra, sink, teams)

    assert_close(got, goal(q, window, extra, sink), BOUNDS)


@pytest.mark.parametrize(("columns", "length"), [(7040, 7031), (8192, 32), (8192, 8192)])
def test_one_long_row_is_taken_as_the_backend_divides_it(columns: int, length: int) -> None:
    q, sink = queries(1, 64)
    window = some_keys(1, 128, BY_64, lengths=False)
    extra = cut(some_keys(1, columns, BY_2, lengths=False), [length])

    got = chosen(q, window, extra, sink)

    assert_close(got, goal(q, window, extra, sink), BOUNDS)


@pytest.mark.parametrize(("rows", "extra"), [(2, 512), (8, 512), (16, 512), (16, 0), (50, 64)])
def test_small_batches_are_taken_as_the_backend_divides_them(rows: int, extra: int) -> None:
    q, sink = queries(rows, 64)
    window = some_keys(rows, 128, BY_64, lengths=False)
    more = some_keys(rows, extra, BY_64, lengths=True) if extra else None

    got = chosen(q, window, more, sink)

    assert_close(got, goal(q, window, more, sink), BOUNDS)


@pytest.mark.parametrize("teams", [1, 3])
def test_rows_without_keys_give_zeros(teams: int) -> None:
    q, sink = queries(2, 3)
    window = some_keys(2, 128, BY_64, lengths=False)
    window.slots.fill_(-1)
    extra = some_keys(2, 512, BY_64, lengths=False)
    extra.slots.fill_(-1)

    for more in (None, extra, cut(extra, [0, 400])):
        got = attend(q, window, more, sink - 50, teams)
        assert_same_bits(got.abs(), torch.zeros_like(q))
    got = attend(q, cut(window, [0, 0]), None, sink, teams)
    assert_same_bits(got.abs(), torch.zeros_like(q))


@pytest.mark.parametrize(("rows", "extra"), [(1, 7040), (4, 448)])
def test_bits_do_not_depend_on_who_comes_first(rows: int, extra: int) -> None:
    q, sink = queries(rows, 64)
    window = some_keys(rows, 128, BY_64, lengths=False)
    more = some_keys(rows, extra, BY_2, lengths=True)
    want = chosen(q, window, more, sink)

    got = [chosen(q, window, more, sink) for _ in range(200)]

    for nth, each in enumerate(got):
        assert_same_bits(each, want, what=f"call {nth}")


def test_room_for_more_keys_changes_no_bits() -> None:
    q, sink = queries(2, 64)
    window = some_keys(2, 128, BY_64, lengths=False)
    extra = some_keys(2, 512, BY_64, lengths=True)
    room = torch.full((2, 1536), OUTSIDE, dtype=torch.int32)
    room[:, :512] = extra.slots
    roomy = PagedKeys(extra.pages, BY_64, room, extra.lengths)

    got = attend(q, window, roomy, sink, 7)

    assert_same_bits(got, attend(q, window, extra, sink, 3))


def test_wider_queries_and_slots_are_taken_as_they_lie() -> None:
    q, sink = queries(3, 7)
    wide = torch.stack((q, q * 3), 1)[:, 0]
    odd = torch.randn(3, 7 * 512 + 4).bfloat16()[:, 4:].view(3, 7, 512)
    window = some_keys(3, 128, BY_64, lengths=False)
    part = PagedKeys(window.pages, BY_64, torch.cat((window.slots, window.slots), 1)[:, :128])

    assert_same_bits(attend(wide, part, None, sink, 1), attend(q, window, None, sink, 1))
    assert_same_bits(attend(odd, window, None, sink, 1), attend(odd.clone(), window, None, sink, 1))


def test_keys_of_a_poisoned_pool_s_other_layers_do_not_leak() -> None:
    q, sink = queries(1, 64)
    window = some_keys(1, 128, BY_64, lengths=False)
    pool = torch.stack((torch.full_like(window.pages, 255), window.pages))
    sliced = PagedKeys(pool[1], BY_64, window.slots)

    assert_close(attend(q, sliced, None, sink, 1), goal(q, window, None, sink), BOUNDS)


@pytest.mark.parametrize("heads", [64, 10])
def test_one_graph_serves_all_lengths(heads: int) -> None:
    rows = 2
    q, sink = queries(rows, heads)
    window = some_keys(rows, 128, BY_64, lengths=False)
    full = some_keys(rows, 2048, BY_64, lengths=False)
    lengths = torch.full((rows,), 2048, dtype=torch.int32)
    extra = PagedKeys(full.pages, BY_64, full.slots.clone(), lengths)

    def step() -> tuple[Tensor, Tensor, Tensor]:
        first = chosen(q, window, extra, sink)
        return first, chosen(first, window, extra, sink), chosen(q, window, None, sink)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for longest in (2048, 0, 70, 700, 2048):
        lengths.random_(0, longest + 1)
        extra.slots.copy_(full.slots[:, torch.randperm(2048)])
        extra.slots.masked_fill_(torch.arange(2048) >= lengths.unsqueeze(1), OUTSIDE)
        graph.replay()
        for got, want in zip(out, step(), strict=True):
            assert_same_bits(got, want, what=f"up to {longest} keys")
        assert_close(out[0], goal(q, window, extra, sink), BOUNDS)
