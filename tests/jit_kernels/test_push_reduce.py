"""Sums over GPUs: what is taken, and on several GPUs what comes out."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from jit_kernels.push_reduce import PushReduce, most_bytes, why_no_peers
from jit_kernels.push_reduce.reference import push_reduce
from tests.testing.compare import assert_same_bits
from tests.testing.rank_processes import in_processes

KIB = 1024
# Sizes of calls one after another: larger and smaller ones, each three times.
SIZES = (*(kib * KIB for kib in (8, 512, 16, 64, 128, 24, 256, 8)), 16, 48)
WORLDS = (2, 4, 8)


def test_the_reference_sums_in_float32_in_the_order_of_ranks() -> None:
    parts = [torch.tensor([number]).bfloat16() for number in (256.0, 1.0, 1.0, 1.0)]
    huge = [torch.tensor([number]) for number in (1e8, -1e8, 1.0)]

    assert_same_bits(push_reduce(parts), torch.tensor([260.0]).bfloat16())
    assert push_reduce(huge) == 1.0
    assert push_reduce(huge[::-1]) == 0.0


MOST_BYTES = most_bytes(4)


@pytest.mark.parametrize(
    ("partial", "taken"),
    [
        (torch.zeros(8, dtype=torch.bfloat16), True),
        (torch.zeros(MOST_BYTES // 2, dtype=torch.bfloat16), True),
        (torch.zeros(MOST_BYTES // 2 + 8, dtype=torch.bfloat16), False),
        (torch.zeros(0, dtype=torch.bfloat16), False),
        (torch.zeros(4, dtype=torch.bfloat16), False),
        (torch.zeros(12, dtype=torch.bfloat16)[4:], False),
        (torch.zeros(4, 16, dtype=torch.bfloat16).T, False),
        (torch.zeros(8), False),
    ],
    ids=["vector", "most", "more", "none", "half", "unaligned", "strided", "float32"],
)
def test_whole_vectors_of_bfloat16_are_taken_up_to_a_size(partial: Tensor, taken: bool) -> None:
    sums = PushReduce.__new__(PushReduce)
    sums._most = MOST_BYTES
    assert sums.takes(partial) == taken


def test_a_device_that_cannot_reach_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaches(own: torch.device, other: int) -> bool:
        return (own.index, other) != (1, 3)

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", reaches)

    assert why_no_peers(torch.device("cuda", 0), 4, 0) is None
    told = why_no_peers(torch.device("cuda", 1), 4, 0)
    assert told == "device 1 cannot reach the memory of device 3"
    assert why_no_peers(torch.device("cuda", 1), 2, 0) is None


class _Group:
    """The kernel, and NCCL beside it as the judge's messenger."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.world, self.device = world, device
        self.sums = PushReduce(rank, world, device, exchange=self.exchanged, limit_s=30.0)

    def all(self, part: Tensor) -> list[Tensor]:
        """Return what all ranks give."""
        parts = [torch.empty_like(part) for _ in range(self.world)]
        dist.all_gather(parts, part)
        return parts

    def exchanged(self, told: bytes) -> list[bytes]:
        """Return the bytes of all ranks."""
        mine = torch.frombuffer(bytearray(told), dtype=torch.uint8).to(self.device)
        return [bytes(row.cpu().numpy()) for row in self.all(mine)]

    def alike(self, got: Tensor, part: Tensor) -> bool:
        """Compare with the reference: all bits, but for the sign of zeros."""
        want = push_reduce(self.all(part))
        return torch.equal(got.float(), want.float())


def eager(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """Run in each process: calls of changing sizes, among them zeros."""
    group, wrong = _Group(rank, world, device), list[str]()
    torch.manual_seed(rank)
    for size in SIZES:
        for repeat in ("random", "half zeros", "zeros"):
            part = torch.randn(size // 2, device=device).bfloat16()
            if repeat != "random":
                part[:: 2 if repeat == "half zeros" else 1] = 0
            if not group.alike(group.sums(part), part):
                wrong.append(f"{size} bytes, {repeat}")
    return {"wrong": wrong}


def graphs(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """Run in each process: graphs of several calls, replayed in turn, eager calls between."""
    group, wrong = _Group(rank, world, device), list[str]()
    torch.manual_seed(rank)
    sizes = (8 * KIB, 512 * KIB, 64 * KIB)
    given = [torch.randn(size // 2, device=device).bfloat16() for size in sizes]
    made: list[tuple[torch.cuda.CUDAGraph, list[Tensor]]] = []
    for part in given:
        group.sums(part)
    for order in ((0, 1, 2), (2, 0), (1,)):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [group.sums(given[i]) for i in order]
        made.append((graph, outs))
    for repeat in range(6):
        for part in given:
            part.normal_()
        graph, outs = made[repeat % 3]
        graph.replay()
        for i, out in zip(((0, 1, 2), (2, 0), (1,))[repeat % 3], outs, strict=True):
            if not group.alike(out, given[i]):
                wrong.append(f"replay {repeat}, {sizes[i]} bytes")
        if not group.alike(group.sums(given[repeat % 3]), given[repeat % 3]):
            wrong.append(f"after replay {repeat}")
    return {"wrong": wrong}


@pytest.mark.multi_gpu
@pytest.mark.parametrize("function", ["eager", "graphs"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_gets_the_sum(world: int, function: str, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} GPUs")
    name = f"tests.jit_kernels.test_push_reduce:{function}"

    found = in_processes(world, name, tmp_path, backend="nccl")

    assert [told["wrong"] for told in found] == [[]] * world
