"""Which calls are for the kernel of few rows, and which are left to FlashMLA."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from jit_kernels.paged_attention import PagedKeys, SplitPlan
from tests.testing.packed_pages import BY_3, BY_64, some_keys

SCALE = 512**-0.5
MOST = 32


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the backend on a device of 32 teams; `calls` says where each call went."""
    fake: Any = ModuleType("flash_mla")
    fake.flash_mla_with_kvcache = fake.get_mla_metadata = None
    monkeypatch.setitem(sys.modules, "flash_mla", fake)
    names = [f"jit_kernels.paged_attention.{name}_backend" for name in ("flash_mla", "few_rows")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    vendor, few_rows = (importlib.import_module(name) for name in names)
    found: Any = few_rows
    found.calls = []
    monkeypatch.setattr(found, "most_teams", lambda device: MOST)
    monkeypatch.setattr(vendor, "paged_attention", lambda *call: found.calls.append("flash_mla"))
    monkeypatch.setattr(found, "attend", lambda *call: found.calls.append(call[-1]))
    yield found
    monkeypatch.undo()
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("rows", "tiles", "teams"),
    [
        (1, 2, 1),
        (1, 3, 1),
        (1, 10, 3),
        (1, 112, 28),
        (1, 128, 32),
        (1, 130, 32),
        (1, 640, 32),
        (1, 641, 0),
        (2, 64, 16),
        (2, 112, 16),
        (4, 112, 8),
        (4, 160, 8),
        (4, 161, 0),
        (5, 24, 6),
        (5, 25, 0),
        (10, 10, 3),
        (11, 10, 0),
        (16, 8, 2),
        (16, 9, 0),
        (32, 4, 1),
        (32, 5, 0),
        (33, 1, 0),
    ],
)
def test_rows_share_the_teams_of_a_device(backend: Any, rows: int, tiles: int, teams: int) -> None:
    got = backend.teams_for(rows, tiles, MOST)

    assert got == teams
    assert got <= 1 or rows * got <= MOST
    assert backend.teams_for(rows, tiles, 0) == 0


def test_what_the_kernel_does_not_take_goes_to_flash_mla(backend: Any) -> None:
    q, sink = torch.randn(2, 64, 512).bfloat16(), torch.randn(64)
    window = some_keys(2, 128, BY_64, lengths=False)
    extra = some_keys(2, 192, BY_3, lengths=True)
    assert extra.lengths is not None
    apart = torch.stack((extra.lengths, extra.lengths), 1)[:, 0]
    odd = torch.empty(window.pages.numel() + 8, dtype=torch.uint8)[8:].view(window.pages.shape)

    def go(q: torch.Tensor, window: PagedKeys, extra: PagedKeys | None, fixed: bool = False) -> Any:
        backend.paged_attention(q, window, extra, sink, SCALE, SplitPlan(), fixed)
        return backend.calls.pop()

    assert go(q, window, extra) == 2
    assert go(q, window, None) == 1
    assert go(q[:, :5], window, None) == 1
    for left in (
        go(q, window, extra, True),
        go(torch.cat((q, q[:, :1]), 1), window, extra),
        go(q[:0], some_keys(1, 64, BY_64, lengths=False), None),
        go(q, window, dataclasses.replace(extra, lengths=apart)),
        go(q, dataclasses.replace(window, pages=odd), None),
        go(q.repeat(40, 1, 1), some_keys(80, 64, BY_64, lengths=False), None),
    ):
        assert left == "flash_mla"
