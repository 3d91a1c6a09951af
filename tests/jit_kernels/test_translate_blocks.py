"""Places of chosen blocks, by a table of pages and in a workspace."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.translate_blocks import place_blocks, translate_blocks

TABLE = [[5, 9, 2], [7, 1, 4]]
BLOCKS = [[0, 63, 64, -1], [130, -1, 1, 191]]


def test_slots_are_page_and_place_in_it(device: torch.device) -> None:
    out = torch.full((2, 64), 7, dtype=torch.int32)

    translate_blocks(
        torch.tensor(BLOCKS), torch.tensor(TABLE, dtype=torch.int32), out, page_blocks=64
    )

    assert out[0, :4].tolist() == [5 * 64, 5 * 64 + 63, 9 * 64, -1]
    assert out[1, :4].tolist() == [4 * 64 + 2, -1, 7 * 64 + 1, 4 * 64 + 63]
    assert bool((out[:, 4:] == -1).all())


def test_tokens_of_one_row_share_its_table(device: torch.device) -> None:
    out = torch.full((2, 4), 7, dtype=torch.int32)

    translate_blocks(
        torch.tensor(BLOCKS),
        torch.tensor(TABLE, dtype=torch.int32),
        out,
        page_blocks=64,
        row=torch.tensor([1, 1]),
    )

    assert out[0].tolist() == [7 * 64, 7 * 64 + 63, 64, -1]


def test_places_count_from_the_base_of_the_row(device: torch.device) -> None:
    out = torch.full((2, 9), 7, dtype=torch.int32)
    base = torch.tensor([1000, 20, 300])

    place_blocks(torch.tensor(BLOCKS), base, out[:, 2:8], row=torch.tensor([2, 0]))

    assert out.tolist() == [
        [7, 7, 300, 363, 364, -1, -1, -1, 7],
        [7, 7, 1130, -1, 1001, 1191, -1, -1, 7],
    ]


def test_an_output_that_is_too_narrow_is_refused(device: torch.device) -> None:
    blocks = torch.tensor(BLOCKS)
    out = torch.zeros((2, 3), dtype=torch.int32)

    with pytest.raises(ShapeError, match=r"\[2, 4\] blocks do not fit out \[2, 3\]"):
        place_blocks(blocks, torch.tensor([1]), out, row=torch.tensor([0, 0]))
    table = torch.tensor(TABLE[:1], dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"page_table has shape \[1, 3\], expected \[2, any\]"):
        translate_blocks(blocks, table, out, page_blocks=64)
