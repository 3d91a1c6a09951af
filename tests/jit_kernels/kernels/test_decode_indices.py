"""Slots of decoding rows, made by the device."""

import pytest
import torch
from torch import Tensor

from jit_kernels.decode_indices import PageSizes, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

V4 = PageSizes(page=256, swa_page=64, window=128)
SMALL = PageSizes(page=128, swa_page=5, window=7)
NAMES = ("window", "swa", "c4", "c128", "c4 blocks", "c128 lengths", "c128 slots")
# Positions, sizes, pages of a row, SWA pages of a row, columns of blocks of 128.
CASES = with_large(
    [
        ([-1], V4, 1, 2, 64),
        ([0, -1, 127], V4, 1, 2, 0),
        ([255, 128, 3, 1023, 1024], V4, 5, 2, 64),
        ([6, 127, 128, 500], SMALL, 4, 3, 64),
    ],
    [(torch.randint(-1, 1 << 20, (128,)).tolist(), V4, 4096, 2, 8192)],
)


def same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    """Fail unless all parts have the same bits."""
    for name, have, goal in zip(NAMES, got, want, strict=True):
        assert_same_bits(have, goal, what=name)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("positions", "sizes", "pages", "swa_pages", "columns"), CASES)
def test_slots_are_those_of_the_reference(
    positions: list[int], sizes: PageSizes, pages: int, swa_pages: int, columns: int, started: bool
) -> None:
    position = torch.tensor(positions)
    rows = position.shape[0]
    table = torch.randint(1, 1000, (rows, pages), dtype=torch.int32)
    window = torch.randint(1, 1000, (rows, swa_pages + 1), dtype=torch.int32)[:, :swa_pages]
    start = (position - torch.arange(rows) * 4).clamp(min=-3) if started else None

    got = triton_backend.decode_indices(position, table, window, start, sizes, columns)

    same(got, reference.decode_indices(position, table, window, start, sizes, columns))


@pytest.mark.gpu
def test_one_graph_follows_its_inputs() -> None:
    position = torch.zeros(40, dtype=torch.int64)
    table = torch.zeros((40, 16), dtype=torch.int32)
    window = torch.zeros((40, 2), dtype=torch.int32)
    triton_backend.decode_indices(position, table, window, None, V4, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = triton_backend.decode_indices(position, table, window, None, V4, 64)
    for longest in (4096, 90, 1000):
        position.random_(-1, longest)
        table.random_(1, 5000)
        window.random_(1, 5000)
        graph.replay()
        same(got, reference.decode_indices(position, table, window, None, V4, 64))
