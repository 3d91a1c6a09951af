"""Blocks of pairs on the device, to the bit."""

import pytest
import torch

from jit_kernels.expert_blocks import expert_blocks as chosen_here
from jit_kernels.expert_blocks import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

CASES = with_large(
    [(1, 5, 2, 8), (21, 5, 3, 4), (70, 33, 2, 16), (3, 2, 2, 32)],
    [
        *((rows, 256, 6, 8) for rows in (1, 3, 63, 64, 65)),
        *((rows, 256, 6, 16) for rows in (255, 256, 257, 341, 342)),
        *((1000, 256, 6, 64), (8192, 256, 6, 128), (16384, 256, 6, 128), (40000, 256, 6, 128)),
        *((5000, 384, 6, 128), (700, 384, 8, 32), (300, 511, 3, 8), (900, 512, 7, 16)),
        *((40, 600, 6, 8), (3000, 600, 6, 128), (2500, 1, 1, 64), (4000, 7, 2, 1)),
    ],
)


def check(experts: torch.Tensor, num_experts: int, size: int) -> None:
    """Fail unless the kernel and the reference agree in every field."""
    got = triton_backend.expert_blocks(experts, num_experts, size)
    want = reference.expert_blocks(experts, num_experts, size)
    for name in want._fields:
        assert_same_bits(getattr(got, name), getattr(want, name), what=name)


@pytest.mark.parametrize(("rows", "experts", "top_k", "size"), CASES)
def test_the_blocks_are_those_of_the_reference(
    rows: int, experts: int, top_k: int, size: int
) -> None:
    chosen = torch.rand(rows, experts).argsort(1)[:, :top_k]

    check(chosen, experts, size)
    check(chosen.int(), experts, size)


def test_many_pairs_are_counted_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "CHUNK", 32)

    for rows in (70, 129):
        check(torch.randint(-1, 4, (rows, 2)), 4, 16)
    check(torch.randint(0, 2, (600, 1)), 2, 128)


def test_all_rows_may_want_one_expert_and_most_experts_none() -> None:
    for rows in with_large([37], [1, 1000, 2049, 16384]):
        for expert in (0, 2, 6):
            check(torch.full((rows, 1), expert, dtype=torch.int32), 7, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [64, 16384])
@pytest.mark.parametrize("expert", [0, 128, 255])
def test_all_pairs_of_a_batch_may_want_one_expert_of_many(expert: int, rows: int) -> None:
    check(torch.full((rows, 6), expert), 256, 128)


def test_pairs_of_another_rank_have_no_place() -> None:
    for rows in with_large([30], [6000]):
        experts = torch.randint(-4, 9, (rows, 2))
        check(experts, 5, 4)
        assert (
            (chosen_here(experts, num_experts=5, size=4).place < 0)
            == (experts.flatten() < 0).logical_or(experts.flatten() > 4)
        ).all()


def test_no_pair_may_be_ours() -> None:
    for rows in with_large([3], [6000]):
        check(torch.full((rows, 2), 9), 5, 8)


def test_no_rows_make_no_blocks() -> None:
    check(torch.empty(0, 6, dtype=torch.int64), 16, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [64, 4096])
def test_a_graph_sorts_other_pairs_when_replayed(rows: int) -> None:
    experts = torch.rand(rows, 256).argsort(1)[:, :6].contiguous()
    triton_backend.expert_blocks(experts, 256, 8)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = triton_backend.expert_blocks(experts, 256, 8)

    for _ in range(3):
        experts.copy_(torch.rand(rows, 256).argsort(1)[:, :6])
        graph.replay()
        want = reference.expert_blocks(experts, 256, 8)
        for name in want._fields:
            assert_same_bits(getattr(got, name), getattr(want, name), what=name)
