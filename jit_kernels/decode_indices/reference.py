"""Slots of decoding rows in plain torch."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.decode_indices import KEY_TILE
from jit_kernels.rope.reference import rotations

if TYPE_CHECKING:
    from jit_kernels.decode_indices import PageSizes

# How many positions before a row's own each of its rotations is of.
BACK = (0, 0, 3, 127)


def decode_indices(
    position: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    window_from: torch.Tensor | None,
    sizes: "PageSizes",
    c128_columns: int,
    top_k: int,
    angles: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return slots in the order of `DecodeIndices`; see `jit_kernels.decode_indices`."""
    lowest = torch.zeros_like(position) if window_from is None else window_from.clamp(min=0)
    back = torch.arange(1 - sizes.window, 1, device=position.device)
    seen = position.unsqueeze(1) + back
    column = seen // sizes.swa_page % window.shape[1]
    slots = window.gather(1, column) * sizes.swa_page + seen % sizes.swa_page
    slots = slots.masked_fill(seen < lowest.unsqueeze(1), -1).to(torch.int32)
    window_slots = torch.nn.functional.pad(slots, (0, -sizes.window % KEY_TILE), value=-1)

    live = position >= 0
    place = position.clamp(min=0)
    column = place // sizes.swa_page % window.shape[1]
    own = window.gather(1, column.unsqueeze(1))[:, 0].to(torch.int64)
    swa_slot = (own * sizes.swa_page + place % sizes.swa_page).masked_fill(~live, 0)
    page = page_table.gather(1, (place // sizes.page).unsqueeze(1))[:, 0].to(torch.int64)

    def finished(ratio: int) -> torch.Tensor:
        slot = page * (sizes.page // ratio) + place % sizes.page // ratio
        return slot.masked_fill(~live | (place % ratio != ratio - 1), 0)

    blocks = (position + 1) // 128
    per_page = sizes.page // 128
    block = torch.arange(c128_columns, device=position.device)
    held = (block // per_page).clamp(max=page_table.shape[1] - 1)
    c128_slots = page_table[:, held] * per_page + block % per_page
    c128_slots = c128_slots.masked_fill(block >= blocks.unsqueeze(1), -1)
    c4_blocks = ((position + 1) // 4).to(torch.int32)
    return (
        *(window_slots, swa_slot, finished(4), finished(128)),
        *(c4_blocks, blocks.to(torch.int32), c128_slots.to(torch.int32)),
        *(c4_blocks.to(torch.int64), c4_blocks.clamp(max=top_k)),
        torch.stack(
            [rotations(position - back, angles[min(nth, 1)]) for nth, back in enumerate(BACK)]
        ),
    )
