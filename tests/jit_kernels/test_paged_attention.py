"""Attention over packed records, against the formula; what the vendor is handed."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.kv_records.reference import decode_records
from jit_kernels.paged_attention import (
    PagedKeys,
    SplitPlan,
    paged_attention,
)
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import gather_rows
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.packed_pages import BY_3, BY_64, some_keys

SCALE = 512**-0.5


def formula(q: Tensor, keys: Tensor, sink: Tensor) -> Tensor:
    """Return the attention of one row [H, 512] over keys [K, 512], in float64."""
    logits = SCALE * q.double() @ keys.double().T
    p = torch.cat((logits, sink.double().unsqueeze(1)), 1).softmax(1)[:, :-1]
    return (p @ keys.double()).bfloat16()


def keys_of(keys: PagedKeys, row: int) -> Tensor:
    """Return the keys that a row names, one after the other."""
    slots = keys.slots[row]
    count = len(slots) if keys.lengths is None else int(keys.lengths[row])
    named = [slot for slot in slots.tolist()[:count] if slot >= 0]
    records = gather_rows(keys.pages, torch.tensor(named, dtype=torch.int64), keys.layout)
    return decode_records(records, "fp8", 512, 64)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_attention_equals_the_formula(
    device: torch.device, lengths: bool, deterministic: bool
) -> None:
    q, sink = torch.randn(4, 5, 512).bfloat16(), torch.randn(5)
    window = some_keys(4, 64, BY_64, lengths=False)
    extra = some_keys(4, 128, BY_3, lengths=lengths)

    got = paged_attention(q, window, extra, sink=sink, scale=SCALE, deterministic=deterministic)

    want = [
        formula(q[row], torch.cat((keys_of(window, row), keys_of(extra, row))), sink)
        for row in range(4)
    ]
    bounds = Bounds(atol=2e-2, rtol=2e-2, rms=1e-2)
    assert_close(got, torch.stack(want), bounds)


def test_a_row_without_keys_gives_zeros(device: torch.device) -> None:
    q, sink = torch.randn(2, 3, 512).bfloat16(), torch.tensor([0.0, -torch.inf, 9.0])
    window = some_keys(2, 64, BY_64, lengths=False)
    window.slots[1] = -1

    got = paged_attention(q, window, None, sink=sink, scale=SCALE)

    assert_same_bits(got[1].abs(), torch.zeros_like(got[1]))
    assert bool(got[0].isfinite().all())


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    q, sink = torch.zeros(2, 3, 512).bfloat16(), torch.zeros(3)
    window = some_keys(2, 64, BY_64, lengths=True)

    def refused(why: str, q: Tensor = q, keys: PagedKeys = window) -> None:
        with pytest.raises(ShapeError, match=why):
            paged_attention(q, keys, None, sink=sink, scale=SCALE)

    refused("q is torch.float32", q.float())
    refused("q has 129 heads, expected at most 128", q[:, :1].expand(2, 129, 512))
    refused(
        "window has 60 slots, expected a multiple of 64",
        keys=dataclasses.replace(window, slots=window.slots[:, :60]),
    )
    refused(
        r"window.slots has shape \[1, 64\], expected \[2, any\]",
        keys=dataclasses.replace(window, slots=window.slots[:1]),
    )
    layout = PageLayout(page_rows=65, data_bytes=576, scale_bytes=0, page_bytes=37440)
    refused("packed records have 576", keys=dataclasses.replace(window, layout=layout))
    refused("must be contiguous", keys=dataclasses.replace(window, pages=window.pages[::2]))


def heads_of_zeros(q: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and sinks of 64 or 128 heads."""
    more = -q.shape[1] % 64
    return F.pad(q, (0, 0, 0, more)), F.pad(sink, (0, more))


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the adapter with a FlashMLA that remembers its calls."""
    fake: Any = ModuleType("flash_mla")
    calls: list[dict[str, Any]] = []

    class Schedule:
        tile_scheduler_metadata: Tensor | None = None
        num_splits: Tensor | None = None

    def flash_mla_with_kvcache(q: Tensor, k_cache: Tensor, **more: Any) -> tuple[Tensor, None]:
        calls.append({"q": q, "k_cache": k_cache, **more})
        return q * 2, None

    fake.flash_mla_with_kvcache = flash_mla_with_kvcache
    fake.get_mla_metadata = lambda: (Schedule(), None)
    monkeypatch.setitem(sys.modules, "flash_mla", fake)
    name = "jit_kernels.paged_attention.flash_mla_backend"
    monkeypatch.delitem(sys.modules, name, raising=False)
    adapter: Any = importlib.import_module(name)
    adapter.calls = calls
    # What the kernel of heads does, which needs a device: jit_kernels/kernels/test_triton_heads.py.
    monkeypatch.setattr(adapter, "pad_heads", heads_of_zeros)
    monkeypatch.setattr(adapter, "processors_of", lambda device, heads: 6)
    yield adapter
    monkeypatch.undo()
    sys.modules.pop(name, None)


def test_the_vendor_gets_whole_heads_and_pages_as_records(vendor: Any) -> None:
    q, sink = torch.randn(3, 70, 512).bfloat16(), torch.randn(70)
    window = some_keys(3, 128, BY_64, lengths=False)
    extra = some_keys(3, 64, BY_3, lengths=True)

    got = vendor.paged_attention(q, window, extra, sink, SCALE, SplitPlan(), False)

    assert_same_bits(got, q * 2)
    (call,) = vendor.calls
    assert call["q"].shape == (3, 1, 128, 512)
    assert call["attn_sink"].shape == (128,)
    assert call["k_cache"].shape == (window.pages.shape[0], 64, 1, 584)
    assert call["k_cache"].stride() == (37440, 584, 584, 1)
    assert call["extra_k_cache"].stride() == (2304, 584, 584, 1)
    assert call["extra_indices_in_kvcache"].shape == (3, 1, 64)
    assert call["extra_topk_length"] is extra.lengths
    assert call["use_legacy"]


def test_calls_alike_share_the_vendor_s_schedule(vendor: Any) -> None:
    q, sink = torch.randn(2, 64, 512).bfloat16(), torch.randn(64)
    window = some_keys(2, 64, BY_64, lengths=False)
    plan = SplitPlan()

    for mine, fixed in ((plan, False), (plan, False), (SplitPlan(), False), (plan, True)):
        vendor.paged_attention(q, window, None, sink, SCALE, mine, fixed)

    first, second, other, fixed = (call["tile_scheduler_metadata"] for call in vendor.calls)
    assert first is second
    assert first is not other
    assert fixed.tile_scheduler_metadata.shape == (6, 8)


def test_without_a_plan_the_vendor_makes_it(vendor: Any) -> None:
    q, sink = torch.randn(2, 64, 512).bfloat16(), torch.randn(64)
    window = some_keys(2, 64, BY_64, lengths=False)

    vendor.paged_attention(q, window, None, sink, SCALE, SplitPlan(), False)

    (call,) = vendor.calls
    assert call["tile_scheduler_metadata"].tile_scheduler_metadata is None


@pytest.mark.parametrize(("rows", "processors"), [(1, 6), (5, 5), (7, 3), (40, 6)])
def test_a_fixed_schedule_gives_each_row_to_one_processor(
    vendor: Any, rows: int, processors: int
) -> None:
    tiles = torch.randint(1, 9, (rows,))

    records, splits = vendor.fixed_schedule(tiles, processors)

    assert splits.tolist() == list(range(rows + 1))
    owners: list[int] = []
    for first, last, begin, end, part, *split in records.tolist():
        assert (begin, part, split) == (0, 0, [0, 0, 0])
        if first < rows:
            owners += range(first, last + 1)
            assert end == int(tiles[last])
    assert owners == list(range(rows))


def test_tiles_are_counted_as_the_vendor_does(vendor: Any) -> None:
    window = some_keys(4, 128, BY_64, lengths=True)
    extra = some_keys(4, 256, BY_64, lengths=True)
    assert window.lengths is not None
    assert extra.lengths is not None
    window.lengths.copy_(torch.tensor([0, 1, 64, 65]))
    extra.lengths.copy_(torch.tensor([0, 64, 129, 256]))

    assert vendor._tiles(window, None).tolist() == [1, 1, 1, 2]
    assert vendor._tiles(window, extra).tolist() == [1, 2, 4, 6]
    plain = dataclasses.replace(window, lengths=None)
    assert vendor._tiles(plain, None).tolist() == [2, 2, 2, 2]
