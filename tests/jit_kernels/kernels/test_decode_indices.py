"""Slots and rotations of decoding rows, made by the device."""

import pytest
import torch
from torch import Tensor

from jit_kernels.decode_indices import PageSizes, reference, triton_backend
from jit_kernels.rope import triton_backend as rope
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

V4 = PageSizes(page=256, swa_page=64, window=128)
SMALL = PageSizes(page=128, swa_page=5, window=7)
NAMES = (
    *("window", "swa", "c4", "c128", "c4 blocks", "c128 lengths", "c128 slots"),
    *("c4 visible", "c4 chosen"),
)
TOP_K = 70
# Positions, sizes, pages of a row, SWA pages of a row, columns of blocks of 128.
CASES = with_large(
    [
        ([-1], V4, 1, 2, 64),
        ([0, -1, 127], V4, 1, 2, 0),
        ([255, 128, 3, 1023, 1024], V4, 5, 2, 64),
        ([6, 127, 128, 500], SMALL, 4, 3, 64),
        # Room for guesses.
        ([63, 130, 191, 192, 255, 1023], V4, 5, 3, 64),
    ],
    [(torch.randint(-1, 1 << 20, (128,)).tolist(), V4, 4096, 2, 8192)],
)


def same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    """Fail unless all parts have the same bits, but for rotations, which are as near as can be."""
    for name, have, goal in zip(NAMES, got[:-1], want[:-1], strict=True):
        assert_same_bits(have, goal, what=name)
    assert_close(got[-1], want[-1], Bounds(atol=5e-7), what="rotations")


def angles(channels: int) -> Tensor:
    """Return two sets of angles, those of a pair alike, the first of them large."""
    pairs = torch.exp(torch.arange(channels // 2) * -0.4)
    return torch.stack((pairs, pairs * 0.3)).repeat_interleave(2, 1)


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
    more = (start, sizes, columns, TOP_K, angles(64 if started else 0))

    got = triton_backend.decode_indices(position, table, window, *more)

    same(got, reference.decode_indices(position, table, window, *more))


@pytest.mark.parametrize("channels", [2, 12, 64])
def test_rotations_have_the_bits_that_a_prompt_gets(channels: int) -> None:
    position = torch.tensor([-1, 0, 3, 127, 4095, 99_999, 350_001, 999_999])
    table, window = (torch.ones((8, size), dtype=torch.int32) for size in (4096, 2))

    made = triton_backend.decode_indices(
        position, table, window, None, V4, 0, TOP_K, angles(channels)
    )

    for turn, back, kind in zip(made[-1], (0, 0, 3, 127), (0, 1, 1, 1), strict=True):
        want = rope.rotations(position - back, angles(channels)[kind])
        assert_same_bits(turn, want, what=f"{back} before, kind {kind}")


@pytest.mark.gpu
def test_one_graph_follows_its_inputs() -> None:
    position = torch.zeros(40, dtype=torch.int64)
    table = torch.zeros((40, 16), dtype=torch.int32)
    window = torch.zeros((40, 2), dtype=torch.int32)
    more = (None, V4, 64, TOP_K, angles(64))
    triton_backend.decode_indices(position, table, window, *more)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = triton_backend.decode_indices(position, table, window, *more)
    for longest in (4096, 90, 1000):
        position.random_(-1, longest)
        table.random_(1, 5000)
        window.random_(1, 5000)
        graph.replay()
        same(got, reference.decode_indices(position, table, window, *more))
