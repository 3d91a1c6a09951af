"""Attention over packed records by the vendor, against the reference."""

import pytest
import torch
from torch import Tensor

from jit_kernels.paged_attention import PagedKeys, SplitPlan, reference
from jit_kernels.paged_rows import PageLayout
from jit_kernels.vendor_library import why_no_flash_mla
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.packed_pages import BY_2, BY_3, BY_64, OUTSIDE, some_keys, taken

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(why_no_flash_mla()), reason=str(why_no_flash_mla())),
]
SCALE = 512**-0.5
BOUNDS = Bounds(atol=2e-2, rtol=2e-2, cosine=0.9999, rms=1e-2)
# Rows, heads, window columns, extra columns (0: no such set), layouts, lengths of both sets.
CASES = [
    (1, 4, 128, 192, BY_64, BY_2, False, False),
    (3, 5, 64, 192, BY_3, BY_64, True, True),
    (3, 17, 64, 0, BY_2, BY_3, False, False),
    (1, 66, 64, 64, BY_64, BY_3, False, True),
    (17, 64, 128, 512, BY_64, BY_64, False, True),
    (64, 64, 128, 512, BY_64, BY_64, False, False),
    (1, 128, 128, 8192, BY_64, BY_64, False, True),
    (33, 128, 128, 1024, BY_64, BY_64, True, True),
    (200, 64, 128, 0, BY_64, BY_64, False, False),
    (64, 8, 128, 2048, BY_64, BY_2, False, True),
]


def attend(
    q: Tensor,
    window: PagedKeys,
    extra: PagedKeys | None,
    sink: Tensor,
    plan: SplitPlan | None = None,
    *,
    deterministic: bool = False,
) -> Tensor:
    """Attend by the vendor, by a plan of its own if none is given."""
    from jit_kernels.paged_attention import flash_mla_backend

    plan = plan or SplitPlan()
    return flash_mla_backend.paged_attention(q, window, extra, sink, SCALE, plan, deterministic)


def queries(rows: int, heads: int) -> tuple[Tensor, Tensor]:
    """Return queries and sinks."""
    return torch.randn(rows, heads, 512).bfloat16(), torch.randn(heads)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("rows", "heads", "columns", "extra", "layout", "extra_layout", "lengths", "extra_lengths"),
    CASES,
    ids=lambda value: str(value.page_rows if isinstance(value, PageLayout) else value),
)
def test_attention_equals_the_reference(
    rows: int,
    heads: int,
    columns: int,
    extra: int,
    layout: PageLayout,
    extra_layout: PageLayout,
    lengths: bool,
    extra_lengths: bool,
    deterministic: bool,
) -> None:
    q, sink = queries(rows, heads)
    window = some_keys(rows, columns, layout, lengths=lengths)
    more = some_keys(rows, extra, extra_layout, lengths=extra_lengths) if extra else None

    got = attend(q, window, more, sink, deterministic=deterministic)

    want = reference.paged_attention(q, window, more, sink, SCALE, SplitPlan(), True)
    assert not want.isnan().any()
    assert_close(got, want, BOUNDS)


@pytest.mark.parametrize("lengths", [False, True])
def test_rows_without_keys_give_zeros(lengths: bool) -> None:
    q, sink = queries(2, 3)
    window = some_keys(2, 64, BY_64, lengths=False)
    window.slots.fill_(-1)
    extra = some_keys(2, 128, BY_64, lengths=lengths)
    extra.slots.fill_(-1)
    if extra.lengths is not None:
        extra.lengths.zero_()

    got = attend(q, window, extra, sink - 50)

    assert_same_bits(got.abs(), torch.zeros_like(q))


def test_a_row_in_fixed_parts_has_the_same_bits_in_any_company() -> None:
    rows, heads, columns = 70, 64, 2048
    q, sink = queries(rows, heads)
    window = some_keys(rows, 128, BY_64, lengths=False)
    extra = some_keys(rows, columns, BY_64, lengths=True)

    def run(pick: Tensor) -> Tensor:
        sets = taken(window, pick), taken(extra, pick)
        return attend(q[pick], *sets, sink, deterministic=True)

    everyone = torch.arange(rows)
    whole = run(everyone)
    for pick in (everyone[1:2], everyone.flip(0)):
        assert_same_bits(run(pick), whole[pick], what=f"rows {pick.tolist()[:4]}")


def test_room_for_more_keys_changes_no_bits_in_fixed_parts() -> None:
    rows, columns = 9, 512
    q, sink = queries(rows, 4)
    window = some_keys(rows, 64, BY_64, lengths=False)
    extra = some_keys(rows, columns, BY_64, lengths=True)
    room = torch.full((rows, 3 * columns), OUTSIDE, dtype=torch.int32)
    room[:, :columns] = extra.slots
    roomy = PagedKeys(extra.pages, BY_64, room, extra.lengths)

    got = attend(q, window, roomy, sink, deterministic=True)

    want = attend(q, window, extra, sink, deterministic=True)
    assert_same_bits(got, want)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("heads", [64, 10])
def test_one_graph_serves_all_lengths(deterministic: bool, heads: int) -> None:
    rows = 24
    q, sink = queries(rows, heads)
    window = some_keys(rows, 128, BY_64, lengths=False)
    full = some_keys(rows, 2048, BY_64, lengths=False)
    lengths = torch.full((rows,), 2048, dtype=torch.int32)
    extra = PagedKeys(full.pages, BY_64, full.slots.clone(), lengths)

    def step() -> tuple[Tensor, Tensor]:
        plan = SplitPlan()
        first = attend(q, window, extra, sink, plan, deterministic=deterministic)
        return first, attend(first, window, extra, sink, plan, deterministic=deterministic)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for longest in (2048, 70, 700):
        lengths.random_(0, longest + 1)
        extra.slots.copy_(full.slots[:, torch.randperm(2048)])
        extra.slots.masked_fill_(torch.arange(2048) >= lengths.unsqueeze(1), OUTSIDE)
        graph.replay()
        name = f"up to {longest} keys"
        for got, goal in zip(out, step(), strict=True):
            assert_close(got, goal, Bounds(atol=2e-2, rtol=2e-2), what=f"eager {name}")
        want = reference.paged_attention(q, window, extra, sink, SCALE, SplitPlan(), True)
        assert not want.isnan().any()
        assert_close(out[0], want, Bounds(atol=2e-2, rtol=2e-2, rms=1e-2), what=name)


def test_keys_are_read_through_slices_of_a_pool() -> None:
    q, sink = queries(2, 4)
    window = some_keys(2, 64, BY_64, lengths=False)
    pool = torch.stack((torch.full_like(window.pages, 255), window.pages))
    sliced = PagedKeys(pool[1], window.layout, window.slots)

    got = attend(q, sliced, None, sink)

    want = reference.paged_attention(q, window, None, sink, SCALE, SplitPlan(), True)
    assert_close(got, want, BOUNDS)


def keys_of_lengths(lengths: Tensor, columns: int) -> PagedKeys:
    """Return keys of rows of these lengths, with rubbish after them."""
    keys = some_keys(lengths.shape[0], columns, BY_2, lengths=False)
    keys.slots.masked_fill_(torch.arange(columns) >= lengths.unsqueeze(1), OUTSIDE)
    return PagedKeys(keys.pages, keys.layout, keys.slots, lengths)


@pytest.mark.parametrize("rows", [1, 24, 150])
def test_plans_of_kinds_follow_the_lengths_in_a_graph(rows: int) -> None:
    q, sink = queries(rows, 64)
    window = some_keys(rows, 128, BY_64, lengths=False)
    few, many = (
        keys_of_lengths(torch.full((rows,), columns, dtype=torch.int32), columns)
        for columns in (512, 8192)
    )
    whole = [few.slots.clone(), many.slots.clone()]
    sets = [None, few, many]

    def step() -> list[Tensor]:
        plans = [SplitPlan() for _ in sets]
        return [
            attend(q, window, more, sink, plan)
            for more, plan in zip(sets * 2, plans * 2, strict=True)
        ]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for longest in (8192, 0, 1, 3000):
        for more, slots in zip((few, many), whole, strict=True):
            assert more.lengths is not None
            more.lengths.random_(0, min(longest, slots.shape[1]) + 1)
            more.slots.copy_(slots)
            late = torch.arange(slots.shape[1]) >= more.lengths.unsqueeze(1)
            more.slots.masked_fill_(late, OUTSIDE)
        graph.replay()
        for nth, more in enumerate(sets):
            want = reference.paged_attention(q, window, more, sink, SCALE, SplitPlan(), True)
            name = f"set {nth}, up to {longest} keys"
            assert_close(out[nth], want, Bounds(atol=2e-2, rtol=2e-2, rms=1e-2), what=name)
            assert_same_bits(out[nth + 3], out[nth], what=name)
