"""Attention over packed records that tokens name, and what the vendor's library is handed."""

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
from jit_kernels.latent_records import decode_latents, encode_latents
from jit_kernels.paged_sparse import SparsePlan, paged_sparse
from tests.testing.compare import Bounds, assert_close, assert_same_bits

PAGE, PAGES, SCALE = 64, 4, 0.05


def records() -> Tensor:
    """Return pages of random packed records; page 0 holds no number."""
    rows = encode_latents(torch.randn(PAGES * PAGE, 576), record_format="fp8", rope_channels=64)
    pages = rows.view(PAGES, PAGE, 656)
    pages[0] = 255
    return pages


def named(tokens: int, columns: int) -> Tensor:
    """Return slots behind page 0 with holes; the last token names none."""
    slots = torch.randint(PAGE, PAGES * PAGE, (tokens, columns), dtype=torch.int32)
    slots[torch.rand(tokens, columns) < 0.3] = -1
    slots[-1] = -1
    return slots


def test_it_is_softmax_over_what_is_named() -> None:
    q, pages, slots = torch.randn(4, 3, 576).bfloat16(), records(), named(4, 128)

    got = paged_sparse(q, pages, slots, scale=SCALE)

    numbers = decode_latents(
        pages[1:].flatten(0, 1), record_format="fp8", channels=576, rope_channels=64
    )
    keys = numbers[(slots - PAGE).clamp(min=0).long()].double()
    logits = torch.einsum("thc,tkc->thk", q.double(), keys) * SCALE
    logits = logits.masked_fill((slots < 0).unsqueeze(1), -torch.inf)
    want = torch.einsum("thk,tkc->thc", logits[:3].softmax(2), keys[:3, :, :512])
    assert_close(got[:3], want, Bounds(atol=1e-2, rtol=1e-2))
    assert not bool(got[3].any())
    alone = paged_sparse(q[1:2], pages, F.pad(slots[1:2], (0, 64), value=-1), scale=SCALE)
    assert_same_bits(alone, got[1:2])


def test_what_does_not_fit_is_refused() -> None:
    q, pages, slots = torch.zeros(1, 2, 576).bfloat16(), records(), named(1, 64)

    with pytest.raises(ShapeError, match="32 columns, expected a multiple of 64"):
        paged_sparse(q, pages, slots[:, :32].contiguous(), scale=1.0)
    with pytest.raises(ShapeError, match="129 heads, expected at most 128"):
        paged_sparse(q.repeat(1, 65, 1)[:, :129].contiguous(), pages, slots, scale=1.0)
    with pytest.raises(ShapeError, match="records has shape"):
        paged_sparse(q, pages[:, :, :584].contiguous(), slots, scale=1.0)
    with pytest.raises(ShapeError, match="q has shape"):
        paged_sparse(q[..., :512].contiguous(), pages, slots, scale=1.0)


class Schedule:
    """A schedule as the vendor makes it."""

    tile_scheduler_metadata: Tensor | None = None
    num_splits: Tensor | None = None


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the adapter with a FlashMLA that remembers its calls, on a device of six parts."""
    fake: Any = ModuleType("flash_mla")
    calls: list[dict[str, Any]] = []

    def flash_mla_with_kvcache(q: Tensor, k_cache: Tensor, **more: Any) -> tuple[Tensor, None]:
        calls.append({"q": q, "k_cache": k_cache, **more})
        return q[..., :512] * 2, None

    fake.flash_mla_with_kvcache = flash_mla_with_kvcache
    fake.get_mla_metadata = lambda: (Schedule(), None)
    monkeypatch.setitem(sys.modules, "flash_mla", fake)
    names = [f"jit_kernels.{op}.flash_mla_backend" for op in ("paged_attention", "paged_sparse")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    adapter: Any = importlib.import_module(names[1])
    adapter.calls = calls
    # What the kernel of heads does, which needs a device: jit_kernels/kernels/test_triton_heads.py.
    monkeypatch.setattr(adapter, "pad_queries", lambda q: F.pad(q, (0, 0, 0, -q.shape[1] % 64)))
    monkeypatch.setattr(adapter, "processors_of", lambda device, heads: 6)
    yield adapter
    monkeypatch.undo()
    for name in names:
        sys.modules.pop(name, None)


def test_the_vendor_gets_whole_heads_and_tokens_in_calls_of_bounded_size(vendor: Any) -> None:
    q, pages, slots = torch.randn(2050, 2, 576).bfloat16(), records(), named(2050, 64)
    plan = SparsePlan()

    for _ in range(2):
        got = vendor.paged_sparse(q, pages, slots, SCALE, plan, False)
        assert_same_bits(got, q[..., :512] * 2)

    assert [len(call["q"]) for call in vendor.calls] == [1024, 1024, 2] * 2
    call = vendor.calls[0]
    assert call["q"].shape == (1024, 1, 64, 576)
    assert call["k_cache"].shape == (PAGES, PAGE, 1, 656)
    assert call["k_cache"].stride() == (PAGE * 656, 656, 656, 1)
    assert call["indices"].shape == (1024, 1, 64)
    assert call["head_dim_v"] == 512
    assert call["is_fp8_kvcache"]
    # The library does not look at lengths of such records, so none are told.
    assert "topk_length" not in call
    assert "attn_sink" not in call
    # Calls alike share a schedule, also in later layers.
    schedules = [call["tile_scheduler_metadata"] for call in vendor.calls]
    assert schedules[0] is schedules[1] is schedules[3]
    assert schedules[2] is schedules[5]
    assert schedules[2] is not schedules[0]


def test_an_invariant_call_gives_each_token_to_one_processor(vendor: Any) -> None:
    q, pages, slots = torch.randn(3, 64, 576).bfloat16(), records(), named(3, 192)

    vendor.paged_sparse(q, pages, slots, SCALE, SparsePlan(), True)

    (call,) = vendor.calls
    schedule = call["tile_scheduler_metadata"]
    assert schedule.num_splits.tolist() == [0, 1, 2, 3]
    at_work = [record for record in schedule.tile_scheduler_metadata.tolist() if record[0] < 3]
    assert [record[:4] for record in at_work] == [[i, i, 0, 3] for i in range(3)]
