"""Top-k on the device, to the bit; it is CUDA C++, so there is no interpreter for it."""

from collections.abc import Callable

import pytest
import torch

from jit_kernels.select_topk import cuda_backend, reference
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.gpu

# Rows, columns, top k. One block holds a row of up to 4,096 or 16,384 columns; many blocks stream
# longer ones. Odd strides too. A row of 16,385 has too few columns for a sample of 2,048.
SHAPES = [
    *((1, 1023, 512), (3, 1024, 1023), (9, 2047, 512), (1, 1088, 512), (2, 4095, 512)),
    *((64, 4096, 2048), (1, 4097, 512), (8, 4097, 1024), (1, 8192, 1), (9, 8191, 512)),
    *((8, 16384, 512), (9, 16384, 2048), (9, 16384, 512), (9, 4098, 1025), (4, 5000, 2048)),
    *((1, 225_000, 512), (5, 65_536, 512), (9, 16385, 512), (1, 600_001, 1024)),
    *((1, 1, 1), (9, 63, 7), (20, 129, 129), (70, 2048, 512), (5, 16384, 1024), (3, 2049, 2048)),
    *((1, 16385, 512), (3, 250_000, 512), (2, 249_999, 1024), (300, 20_001, 512)),
    *((1, 1_000_000, 1024), (3, 40_000, 2048), (4, 32_768, 1), (2, 16385, 2048)),
    *((5, 2500, 512), (5, 4097, 512), (5, 6000, 1024), (64, 250_000, 512)),
    *((8, 250_000, 512), (9, 250_000, 512), (2, 262_144, 512), (2, 262_145, 512)),
    *((2, 225_001, 1024), (8, 17_003, 1000), (1, 50_000, 3), (8, 32_768, 1024), (3, 32_767, 512)),
    *((1, 32_769, 512), (2, 12_289, 700)),
]
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x,
    "coarse": lambda x: (x * 8).round() / 8,
    "all equal": lambda x: torch.ones_like(x),
    "close together": lambda x: 1 + x.abs() * 1e-4,
    "negative and tiny": lambda x: -x.abs() * 1e-40,
    "infinite and zero": lambda x: torch.where(x > 1, torch.inf, torch.where(x < -1, -x * 0, x)),
    "NaN": lambda x: torch.where(x > 2.5, torch.nan, x),
    "rising": lambda x: x.sort()[0],
    "high at the end": lambda x: x + 4.0 * (torch.arange(x.shape[1]) > x.shape[1] - 700),
    "passages": lambda x: x + 5.0 * (torch.arange(x.shape[1]) // 64 % 401 == 7),
    "one passage": lambda x: (
        x
        + 5.0
        * (torch.arange(x.shape[1]) - x.shape[1] // 3 < 600)
        * (torch.arange(x.shape[1]) > x.shape[1] // 3)
    ),
    "nothing but infinity": lambda x: torch.full_like(x, -torch.inf),
    "nothing but NaN": lambda x: torch.full_like(x, torch.nan),
    "mostly -infinity": lambda x: torch.where(x > 1.5, x, -torch.inf),
    "many zeros": lambda x: (x - 2.5).clamp(min=0),
    "far apart": lambda x: (20 * x).exp(),
    "few apart": lambda x: torch.where(torch.arange(x.shape[1]) % 499 == 3, x, -9.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns", "top_k"), SHAPES)
def test_the_choice_equals_the_reference(rows: int, columns: int, top_k: int, kind: str) -> None:
    scores = KINDS[kind](torch.randn(rows, columns))
    visible = torch.randint(columns // 2, columns + 1, (rows,))
    visible[0] = columns
    if rows > 2:
        visible[1], visible[2] = 0, min(top_k, columns)

    got = cuda_backend.select_topk(scores, visible, top_k)

    assert_same_bits(got, reference.select_topk(scores, visible, top_k))
    assert_same_bits(cuda_backend.select_topk(scores, visible, top_k), got, what="second call")


@pytest.mark.parametrize(
    "length", [0, 1, 63, 64, 65, 511, 512, 513, 2048, 4096, 4097, 16_384, 16_385, 250_000]
)
@pytest.mark.parametrize("rows", [8, 9])
@pytest.mark.parametrize("columns", [32_000, 250_000])
def test_rows_of_any_length_in_one_batch(columns: int, rows: int, length: int) -> None:
    scores = torch.randn(rows, columns)
    lengths = [length, columns, 0, length, 17_000, length, 5, 100_001, length]
    visible = torch.tensor(lengths[:rows]).clamp(max=columns)
    hidden = torch.arange(columns) >= visible.unsqueeze(1)
    scores[hidden] = torch.nan

    got = cuda_backend.select_topk(scores, visible, 512)

    assert_same_bits(got, reference.select_topk(scores, visible, 512))


def test_what_is_hidden_is_not_looked_at() -> None:
    scores = torch.full((2, 30_000), torch.nan)
    scores[:, :700] = torch.randn(2, 700)

    got = cuda_backend.select_topk(scores, torch.tensor([700, 3]), 512)

    assert_same_bits(got, reference.select_topk(scores, torch.tensor([700, 3]), 512))
    assert got[1].tolist() == [0, 1, 2] + [-1] * 509


def test_rows_may_lie_apart_in_memory() -> None:
    scores = torch.randn(5, 40_003)[:, :20_001]
    visible = torch.full((5,), 20_001)

    got = cuda_backend.select_topk(scores, visible, 512)

    assert_same_bits(got, reference.select_topk(scores.contiguous(), visible, 512))


# Columns of the scores, of what is written, blocks in a page.
SLOTS = [
    *((1000, 512, 64), (1000, 515, 8), (1000, 576, 64), (4096, 640, 64), (8191, 512, 64)),
    *((20_001, 512, 3), (30_000, 576, 64), (250_000, 576, 64)),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["normal", "coarse", "all equal", "mostly -infinity", "passages"])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize(("columns", "wide", "page_blocks"), SLOTS)
def test_slots_are_those_of_the_reference(
    rows: int, columns: int, wide: int, page_blocks: int, kind: str, dtype: torch.dtype
) -> None:
    scores = KINDS[kind](torch.randn(rows, columns))
    visible = torch.randint(columns // 2, columns + 1, (rows,)).to(dtype)
    visible[0] = columns
    if rows > 2:
        visible[1], visible[2], visible[3] = 0, 511, 3
    scores[torch.arange(columns) >= visible.unsqueeze(1)] = torch.nan
    pages = -(-columns // page_blocks)
    table = torch.randint(1, 5000, (rows, pages + 3), dtype=torch.int32)[:, :pages]
    got = torch.full((rows, wide + 9), 77, dtype=torch.int32)
    want = got.clone()

    for _ in range(2):
        cuda_backend.select_slots(scores, visible, table, got[:, 5 : 5 + wide], 512, page_blocks)

    reference.select_slots(scores, visible, table, want[:, 5 : 5 + wide], 512, page_blocks)
    assert_same_bits(got, want)


def test_slots_of_no_scores_are_none() -> None:
    out = torch.full((2, 3), 7, dtype=torch.int32)
    table = torch.zeros((2, 1), dtype=torch.int32)

    cuda_backend.select_slots(torch.zeros(2, 0), torch.tensor([0, 0]), table, out, 5, 64)

    assert bool((out == -1).all())


@pytest.mark.parametrize("columns", [1000, 4096, 20_000, 60_000])
@pytest.mark.parametrize("rows", [1, 4, 20])
def test_one_graph_of_slots_follows_lengths_and_pages(rows: int, columns: int) -> None:
    scores, visible = torch.randn(rows, columns), torch.full((rows,), columns, dtype=torch.int32)
    table = torch.randint(1, 5000, (rows, -(-columns // 64)), dtype=torch.int32)
    got = torch.empty((rows, 576), dtype=torch.int32)
    want = torch.empty_like(got)
    cuda_backend.select_slots(scores, visible, table, got, 512, 64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda_backend.select_slots(scores, visible, table, got, 512, 64)

    for length in (columns, 511, 900, 0):
        visible.fill_(length)
        scores.normal_()
        table.random_(1, 5000)
        graph.replay()
        reference.select_slots(scores, visible, table, want, 512, 64)
        assert_same_bits(got, want)


def test_one_graph_follows_the_lengths_it_is_given() -> None:
    scores, visible = torch.randn(4, 60_000), torch.full((4,), 60_000)
    cuda_backend.select_topk(scores, visible, 512)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = cuda_backend.select_topk(scores, visible, 512)

    for length in (60_000, 511, 17_000):
        visible.fill_(length)
        scores.normal_()
        graph.replay()
        assert_same_bits(got, reference.select_topk(scores, visible, 512))
