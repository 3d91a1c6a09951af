"""Where tokens of a step go in pages."""

import torch

from layers.steps.page_slots import PageSlots
from tests.layers.steps.test_step_tokens import batch


def test_a_token_is_written_to_its_page_unless_it_is_there_already() -> None:
    slots = PageSlots(batch(), 256)
    pages = torch.full((8, 256, 2), -1.0, dtype=torch.bfloat16)

    slots.store(pages, torch.arange(28.0).view(14, 2))

    # Positions 250 to 255 of the first row are computed again; page 0 takes them.
    assert bool((pages[3] == -1).all())
    assert pages[4, :6, 0].tolist() == [12, 14, 16, 18, 20, 22]
    assert pages[7, 5:7].tolist() == [[24, 25], [26, 27]]
    assert bool((pages[4, 6:] == -1).all())


def test_rows_are_what_attention_takes() -> None:
    slots = PageSlots(batch(), 256)

    assert slots.rows.row.tolist() == [0] * 12 + [1] * 2
    assert slots.position.tolist() == [*range(250, 262), 5, 6]
    finite = torch.ones(14, 3)
    finite[13, 1] = torch.nan
    assert slots.finite_rows(finite).tolist() == [True, False]
