"""Scores of decoding rows from the device; vendor and graphs only there."""

from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.paged_logits import LogitsPlan, reference
from jit_kernels.vendor_library import why_no_deep_gemm
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.indexer_keys import key_layout, some_key_pages, some_queries

CASES = with_large(
    [([70, 0, 64, 1], 32, 32, 70), ([200], 64, 128, 256)],
    [
        ([2000, 17, 5000, 64, 0, 1, 63, 65] * 20, 64, 128, 5001),
        ([100_000], 64, 128, 100_000),
        ([777] * 33, 32, 128, 1000),
        ([0, 0, 0], 64, 128, 64),
        ([0, 1, 63, 64, 65, 511, 512, 513], 64, 128, 576),
        ([2048, 0, 16_384], 64, 128, 16_384),
        ([16_384, 7, 250_000], 64, 128, 250_000),
        ([225_000], 64, 128, 262_144),
        ([1024], 64, 128, 262_144),
        ([0], 64, 128, 262_144),
        ([16_384] * 2, 64, 128, 65_536),
        ([0, 70, 0, 0, 1, 64, 0, 40_001], 64, 128, 40_002),
        ([777] * 33, 64, 128, 1000),
        ([1] * 128, 64, 128, 64),
        ([0] * 40 + [64] * 30 + [0] * 20 + [130] * 38, 64, 128, 192),
        ([340_000] + [1] * 127, 64, 128, 340_000),
        ([65] * 127 + [340_000], 64, 128, 340_000),
        ([90_000, 90_001] * 4, 64, 128, 90_001),
        ([513, 64, 2048] * 3, 64, 128, 2048),
        ([2048] * 64, 64, 128, 2048),
    ],
)
pytestmark = pytest.mark.skipif(why_no_deep_gemm() is not None, reason="needs DeepGEMM")


def scores(*call: Any) -> Tensor:
    """Return what DeepGEMM's backend makes of a call."""
    from jit_kernels.paged_logits import deep_gemm_backend

    return deep_gemm_backend.paged_logits(*call)


def keys_of(counts: list[int], width: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return (pages, table) of rows with so many blocks, the table as wide as the contract asks."""
    pages, table = some_key_pages(counts, width)
    missing = max(0, -(-columns // 64) - table.shape[1])
    return pages, torch.nn.functional.pad(table, (0, missing), value=1 << 30)


def bounds(device: torch.device, want: Tensor) -> Bounds:
    """Return what sums may differ by: tensor cores keep 14 bits of fp8 products."""
    if device.type == "cpu":
        return Bounds(atol=1e-3, rtol=1e-4)
    return Bounds(atol=2e-3 * float(want.abs().max()), rtol=5e-3)


@pytest.mark.parametrize(("counts", "heads", "width", "columns"), CASES, ids=str)
def test_scores_equal_the_reference(
    device: torch.device, counts: list[int], heads: int, width: int, columns: int
) -> None:
    (q, weights), (pages, table) = (
        some_queries(len(counts), heads, width),
        keys_of(counts, width, columns),
    )
    blocks, layout = torch.tensor(counts, dtype=torch.int32), key_layout(width)

    got = scores(q, weights, pages, layout, table, blocks, columns, LogitsPlan())

    want = reference.paged_logits(q, weights, pages, layout, table, blocks, columns, None)
    assert got.shape == want.shape
    seen = torch.arange(columns) < blocks.unsqueeze(1)
    if bool(seen.any()):
        assert_close(got[seen], want[seen], bounds(device, want[seen]), what="scores")


@pytest.mark.parametrize("heads", with_large([32], [64]))
def test_a_row_has_the_same_bits_in_any_company(device: torch.device, heads: int) -> None:
    counts = [70, 3, 64] if device.type == "cpu" else [7000, 3, 999, 64, 512] * 9
    width = 32 if device.type == "cpu" else 128
    (q, weights), (pages, table) = (
        some_queries(len(counts), heads, width),
        some_key_pages(counts, width),
    )
    blocks, layout = torch.tensor(counts, dtype=torch.int32), key_layout(width)

    def run(pick: Tensor, columns: int) -> Tensor:
        rows = (q[pick], weights[pick], pages, layout, table[pick], blocks[pick])
        return scores(*rows, columns, LogitsPlan())

    whole = run(torch.arange(len(counts)), max(counts))
    for pick in ([1], [2, 0], [0, 2, 1] if device.type == "cpu" else [4, 3, 2, 1, 0, 7, 6, 5]):
        part = run(torch.tensor(pick), 64 * table.shape[1])
        for nth, row in enumerate(pick):
            count = counts[row]
            assert_same_bits(part[nth, :count], whole[row, :count], what=f"row {row}")


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(1, 3000), (8, 3000), (24, 3000), (1, 1 << 18)])
def test_one_graph_serves_all_lengths(rows: int, columns: int) -> None:
    counts = ([3000, 64, 1, 900] * 6)[:rows]
    (q, weights), (pages, table) = some_queries(rows, 64, 128), keys_of(counts, 128, columns)
    most = torch.tensor(counts, dtype=torch.int32)
    blocks = most.clone()

    def step() -> tuple[Tensor, Tensor]:
        plan = LogitsPlan()
        rows = (q, weights, pages, key_layout(128), table, blocks, columns)
        return scores(*rows, plan), scores(*rows, plan)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for share in (1.0, 0.0, 0.4):
        blocks.copy_((most * share).to(torch.int32))
        graph.replay()
        want = reference.paged_logits(
            q, weights, pages, key_layout(128), table, blocks, columns, None
        )  # fmt: skip
        seen = torch.arange(columns) < blocks.unsqueeze(1)
        if share:
            for got in out:
                assert_close(got[seen], want[seen], bounds(q.device, want[seen]), what="scores")
