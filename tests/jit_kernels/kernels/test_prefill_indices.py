"""Indices of a prefill chunk, made by the device."""

import pytest

from jit_kernels.decode_indices import PageSizes
from jit_kernels.prefill_indices import BlockList, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.test_prefill_indices import V4, Chunks
from tests.testing.compare import assert_same_bits

SMALL = PageSizes(page=128, swa_page=5, window=7)
# (start, length, window_from) of each row.
CASES = with_large(
    [
        ([(0, 1, 0)], V4),
        ([(250, 7, 0), (0, 3, 0), (1000, 40, 990)], V4),
        ([(3, 5, -2), (127, 130, 127)], SMALL),
    ],
    [([(60000, 3000, 0), (0, 4000, 0), (900000, 500, 890000)], V4)],
)


@pytest.mark.parametrize(("rows", "sizes"), CASES)
@pytest.mark.parametrize("ratios", [(), (4,), (4, 128), (128, 4)])
@pytest.mark.parametrize("guesses", [0, 7])
def test_slots_are_those_of_the_reference(
    rows: list[tuple[int, int, int]], sizes: PageSizes, ratios: tuple[int, ...], guesses: int
) -> None:
    chunks = Chunks(rows, sizes, guesses=guesses)
    blocks = tuple(chunks.blocks(ratio) for ratio in ratios)

    got = triton_backend.prefill_slots(*chunks.tables(), sizes, blocks)

    want = reference.prefill_slots(*chunks.tables(), sizes, blocks)
    for have, goal in zip(got, want, strict=True):
        assert_same_bits(have, goal)


@pytest.mark.parametrize(("rows", "sizes"), CASES)
@pytest.mark.parametrize(
    ("ratio", "columns", "chosen"),
    [(0, 0, False), (4, 24, True), (4, 100, False), (128, 512, False)],
)
def test_indices_are_those_of_the_reference(
    rows: list[tuple[int, int, int]], sizes: PageSizes, ratio: int, columns: int, chosen: bool
) -> None:
    chunks = Chunks(rows, sizes)
    blocks: BlockList | None = chunks.blocks(ratio) if ratio else None
    shape = (sizes.window, columns, (sizes.window + columns + 127) // 128 * 128)

    got = triton_backend.prefill_index(*chunks.tokens(), shape, blocks, chosen)

    want = reference.prefill_index(*chunks.tokens(), shape, blocks, chosen)
    assert_same_bits(got[0], want[0], what="index")
    assert_same_bits(got[1], want[1], what="lengths")
