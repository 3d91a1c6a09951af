"""Slots of decoding rows, against positions written out one by one."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.decode_indices import DecodeIndices, PageSizes, decode_indices
from jit_kernels.rope import rotations
from tests.testing.compare import assert_same_bits

V4 = PageSizes(page=256, swa_page=64, window=128)


def run(
    positions: list[int], window_from: list[int] | None = None, *, columns: int = 64
) -> tuple[DecodeIndices, torch.Tensor, torch.Tensor]:
    """Return the slots, and the tables of pages and of SWA pages that they come from."""
    rows = len(positions)
    table = torch.randperm(rows * 8, dtype=torch.int32).view(rows, 8) + 1
    window = torch.randperm(rows * 2, dtype=torch.int32).view(rows, 2) + 1
    start = None if window_from is None else torch.tensor(window_from)
    position = torch.tensor(positions)
    made = decode_indices(
        *(position, table, window), window_from=start, sizes=V4, c128_columns=columns
    )
    return made, table, window


def test_a_window_ends_at_the_position(device: torch.device) -> None:
    positions, window_from = [500, 3, 128], [400, 0, -7]

    made, _, window = run(positions, window_from)

    for row, (position, lowest) in enumerate(zip(positions, window_from, strict=True)):
        want: list[int] = []
        for seen in range(position - 127, position + 1):
            page = int(window[row, seen // 64 % 2])
            want.append(page * 64 + seen % 64 if seen >= max(0, lowest) else -1)
        assert made.window_slots[row].tolist() == want
        assert int(made.swa_slot[row]) == want[-1]


def test_blocks_are_listed_as_far_as_they_are_whole(device: torch.device) -> None:
    positions = [126, 127, 1000, 1023]

    made, table, _ = run(positions)

    assert made.c4_blocks.tolist() == [31, 32, 250, 256]
    assert made.c128_lengths.tolist() == [0, 1, 7, 8]
    for row, count in enumerate(made.c128_lengths.tolist()):
        want = [int(table[row, block // 2]) * 2 + block % 2 for block in range(count)]
        assert made.c128_slots[row].tolist() == want + [-1] * (64 - count)


def test_a_block_goes_where_its_last_position_says(device: torch.device) -> None:
    made, table, _ = run([126, 127, 255, 259])

    page = table.to(torch.int64)
    c4 = [0, page[1, 0] * 64 + 31, page[2, 0] * 64 + 63, page[3, 1] * 64]
    assert made.c4_slot.tolist() == c4
    assert made.c128_slot.tolist() == [0, page[1, 0] * 2, page[2, 0] * 2 + 1, 0]


def test_a_row_that_pads_the_batch_reads_nothing_and_writes_to_the_dummy(
    device: torch.device,
) -> None:
    made, _, _ = run([-1, 200])

    for slots in (made.window_slots, made.c128_slots):
        assert bool((slots[0] == -1).all())
    for slot in (made.swa_slot, made.c4_slot, made.c128_slot, made.c4_blocks, made.c128_lengths):
        assert int(slot[0]) == 0


def test_rotations_are_of_the_position_and_of_where_its_blocks_begin(device: torch.device) -> None:
    position, angles = torch.tensor([127, -1, 900_003]), torch.rand(2, 6)
    table, window = (torch.ones((3, size), dtype=torch.int32) for size in (4096, 2))

    made = decode_indices(
        *(position, table, window),
        window_from=None,
        sizes=V4,
        c128_columns=64,
        top_k=20,
        angles=angles,
    )

    assert made.c4_visible.tolist() == made.c4_blocks.tolist() == [32, 0, 225_001]
    assert made.c4_chosen.tolist() == [20, 0, 20]
    for turn, (kind, back) in zip(made.rotations, ((0, 0), (1, 0), (1, 3), (1, 127)), strict=True):
        assert_same_bits(turn, rotations(position - back, angles[kind]))


def test_sizes_that_do_not_fit_are_refused(device: torch.device) -> None:
    with pytest.raises(ShapeError, match="c128_columns is 65, expected a multiple of 64"):
        run([3], columns=65)
    position = torch.tensor([3])
    table = torch.ones((1, 1), dtype=torch.int32)

    def refused(why: str, sizes: PageSizes, position: torch.Tensor = position) -> None:
        with pytest.raises(ShapeError, match=why):
            decode_indices(
                *(position, table, table), window_from=None, sizes=sizes, c128_columns=64
            )

    refused("1 SWA pages hold no window of 128", V4)
    refused("pages of 64 positions hold no whole blocks of 128", PageSizes(64, 64, 64))
    refused(r"position is torch\.int32", V4, position.int())
