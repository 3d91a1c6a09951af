"""Kernels in C: what they are called with, how rows are dealt out, and what a bad row may spoil."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jit_kernels.host as host
from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from jit_kernels.indexer_logits import indexer_logits
from jit_kernels.kv_records import decode_records, encode_records
from jit_kernels.moe import moe
from jit_kernels.rms_norm import rms_norm
from jit_kernels.select_topk import select_topk
from jit_kernels.silu_mul import silu_mul
from jit_kernels.sparse_attention import sparse_attention
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from tests.testing.compare import Bounds, assert_close, assert_same_bits

MANY = host.MANY_ROWS + 77


def operations(rows: int) -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Return the ops that deal out rows: name -> (function of per-row tensors, these)."""
    weight, groups = torch.randn(24, 32), torch.randn(2, 9, 16)
    gate_up, down = torch.randn(5, 14, 32), torch.randn(5, 32, 7)
    fn, base, scale = torch.randn(24, 128), torch.randn(24), torch.randn(3)
    keys, sink = torch.randn(200, 32), torch.randn(3)
    keys[0] = 0.0
    blocks = torch.randn(1, 64, 16)
    experts = torch.rand(rows, 5).argsort(1)[:, :2]
    index, visible = torch.randint(0, 200, (rows, 64)), torch.randint(0, 65, (rows,))
    row = torch.zeros(rows, dtype=torch.int64)

    def mix(y: Tensor, streams: Tensor, shares: Tensor) -> Tensor:
        parts = mhc_post_pre_norm(
            *(y, streams, shares, fn, base, scale, weight[0]),
            iterations=3,
            norm_eps=1e-6,
            hc_eps=1e-6,
        )
        return torch.cat([part.flatten(1) for part in parts], 1)

    def head(streams: Tensor) -> Tensor:
        return mhc_head(streams, fn[:4], base[:4], scale[:1], norm_eps=1e-6, hc_eps=1e-6)

    def routed(x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        return moe(x, chosen, share, gate_up=gate_up, down=down, limit=2.0)

    def attend(q: Tensor, named: Tensor) -> Tensor:
        return sparse_attention(q, keys, named, sink=sink, scale=0.2).flatten(1)

    def logits(q: Tensor, weights: Tensor, at: Tensor, seen: Tensor) -> Tensor:
        return indexer_logits(q, weights, blocks, row=at, visible=seen)

    x, streams = torch.randn(rows, 32), torch.randn(rows, 4, 32)
    owed = [x, streams, torch.rand(rows, 5, 4)]
    return {
        "tile_linear": (lambda x: tile_linear(x, weight), [x]),
        "grouped": (lambda x: tile_linear_grouped(x, groups), [torch.randn(rows, 2, 16)]),
        "rms_norm": (lambda x: rms_norm(x, weight[0], eps=1e-6), [x]),
        "silu_mul": (lambda x: silu_mul(x, limit=2.0), [x]),
        "mhc_post_pre_norm": (mix, owed),
        "mhc_post": (lambda *a: mhc_post(*a).flatten(1), owed),
        "mhc_head": (head, [streams]),
        "moe": (routed, [x, experts, torch.rand(rows, 2)]),
        "sparse_attention": (attend, [torch.randn(rows, 3, 32), index]),
        "indexer_logits": (logits, [torch.randn(rows, 3, 16), torch.randn(rows, 3), row, visible]),
    }


NAMES = tuple(operations(1))


@pytest.mark.parametrize("name", NAMES)
def test_many_rows_get_the_bits_they_get_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch, poisoned_empty: None
) -> None:
    monkeypatch.setattr(host, "_threads", lambda: 3)
    op, tensors = operations(MANY)[name]

    whole = op(*tensors)

    for row in (0, 1, 2, 5, 100, host.MANY_ROWS, MANY - 1):
        alone = op(*[tensor[row : row + 1] for tensor in tensors])
        assert_same_bits(alone, whole[row : row + 1], what=f"row {row}")


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_do_not_lie_one_after_another_give_the_same_bits(name: str) -> None:
    op, tensors = operations(11)[name]

    def scattered(tensor: Tensor) -> Tensor:
        return torch.stack((tensor, torch.zeros_like(tensor)), 1)[:, 0]

    assert_same_bits(op(*map(scattered, tensors)), op(*tensors))


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_comes_out_of_its_own_row_and_no_other(name: str) -> None:
    op, tensors = operations(9)[name]
    if name == "indexer_logits":
        tensors[3].fill_(64)
    clean = op(*[tensor.clone() for tensor in tensors])
    tensors[0][4] = torch.nan

    got = op(*tensors)

    assert got[4].isnan().any()
    others = [row for row in range(9) if row != 4]
    assert_same_bits(got[others], clean[others])


def test_a_nan_survives_the_packed_record() -> None:
    kv = torch.randn(3, 512)
    kv[1, 70], kv[2, 500] = torch.nan, torch.nan

    records = encode_records(kv, record_format="fp8", rope_channels=64)
    got = decode_records(records, record_format="fp8", channels=512, rope_channels=64)

    assert got[0].isfinite().all()
    assert got[1, 70].isnan()
    assert got[2, 500].isnan()


def test_exponentials_reach_from_nothing_to_infinity() -> None:
    # silu(x) / x is 1 / (1 + e^-x).
    x = torch.cat((torch.linspace(-120, 120, 4801), torch.tensor([-1e30, -0.0, 1e30])))

    got = silu_mul(torch.cat((x, torch.ones_like(x))).unsqueeze(0), limit=torch.inf)[0]

    want = x.double() / (1 + (-x.double()).exp())
    assert_close(got, want.float(), Bounds(atol=1e-36, rtol=1e-6))


def test_infinite_scores_are_ordered_and_zeros_are_equal() -> None:
    scores = torch.tensor([[0.0, -0.0, -torch.inf, torch.inf, 0.0, torch.nan, -1.0]])

    def best(count: int) -> list[int]:
        return select_topk(scores, torch.tensor([7]), top_k=count)[0].tolist()

    assert best(1) == [5]
    assert best(2) == [3, 5]
    assert best(4) == [0, 1, 3, 5]
    assert best(6) == [0, 1, 3, 4, 5, 6]


def test_every_row_is_dealt_out_once_and_to_more_than_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "_threads", lambda: 2)
    taken: list[tuple[int, int]] = []
    both = threading.Barrier(2)
    seen: set[int] = set()

    def work(first: int, last: int) -> None:
        taken.append((first, last))
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            both.wait(timeout=60)

    host.by_rows(work, 1001)

    assert sorted(row for part in taken for row in range(*part)) == list(range(1001))
    assert len(seen) == 2


def test_few_rows_stay_with_the_caller() -> None:
    calls: list[tuple[int, int, int]] = []

    host.by_rows(lambda *part: calls.append((*part, threading.get_ident())), host.MANY_ROWS - 1)

    assert calls == [(0, host.MANY_ROWS - 1, threading.get_ident())]


@pytest.mark.parametrize("bad", [200, -1])
def test_an_index_out_of_range_is_an_error_whichever_thread_meets_it(
    bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_threads", lambda: 3)
    op, tensors = operations(MANY)["sparse_attention"]
    tensors[1][MANY // 2, 5] = bad

    with pytest.raises(IndexError, match="out of range"):
        op(*tensors)


def test_without_a_compiler_the_references_are_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    host._library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    host.why_not.cache_clear()
    try:
        assert "no C compiler 'no-such-compiler'" in (host.why_not() or "")
        assert "the slow references run" in caplog.text
    finally:
        host.why_not.cache_clear()


def test_halves_are_widened_and_rows_laid_flat() -> None:
    x = torch.randn(4, 6)

    assert host.rows_of(x) is x
    assert host.rows_of(x[:, 1:4]).data_ptr() == x[:, 1:].data_ptr()
    assert host.rows_of(x.t()).stride() == (4, 1)
    assert host.rows_of(x.bfloat16()).dtype == torch.float32
