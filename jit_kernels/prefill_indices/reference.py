"""Indices of a prefill chunk in plain torch."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jit_kernels.decode_indices import PageSizes
    from jit_kernels.prefill_indices import BlockList


def prefill_slots(
    chunk_start: torch.Tensor,
    chunk_len: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    window_from: torch.Tensor,
    sizes: "PageSizes",
    blocks: "tuple[BlockList, ...]",
) -> tuple[torch.Tensor, ...]:
    """Return slots; see `jit_kernels.prefill_indices.prefill_slots`."""
    back = torch.arange(1 - sizes.window, 0, device=chunk_start.device)
    position = chunk_start.unsqueeze(1) + back
    page = window.gather(1, position // sizes.swa_page % window.shape[1])
    old = page * sizes.swa_page + position % sizes.swa_page
    unread = position < window_from.clamp(min=0).unsqueeze(1)
    result = [old.masked_fill(unread, -1).to(torch.int32).flatten()]
    for part in blocks:
        per_page = sizes.page // part.ratio
        slots = page_table.new_empty((part.count,))
        counts = (chunk_start + chunk_len) // part.ratio
        for row, (first, count) in enumerate(zip(part.base.tolist(), counts.tolist(), strict=True)):
            block = torch.arange(count, device=slots.device)
            held = page_table[row, block // per_page] * per_page + block % per_page
            slots[first : first + count] = held.to(torch.int32)
        result.append(slots)
    return tuple(result)


def prefill_index(
    position: torch.Tensor,
    row: torch.Tensor,
    chunk_start: torch.Tensor,
    window_from: torch.Tensor,
    shape: tuple[int, int, int],
    blocks: "BlockList | None",
    chosen: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return index and lengths; see `jit_kernels.prefill_indices.prefill_index`."""
    window, columns, width = shape
    tokens, rows, device = position.shape[0], chunk_start.shape[0], position.device
    index = torch.full((tokens, width), -1, dtype=torch.int32, device=device)
    lengths = torch.full((tokens,), window, dtype=torch.int32, device=device)
    back = torch.arange(1 - window, 1, device=device)
    seen = position.unsqueeze(1) + back
    start = chunk_start[row].unsqueeze(1)
    old = row.unsqueeze(1) * (window - 1) + (window - 1) + seen - start
    chunk = torch.arange(tokens, device=device).unsqueeze(1) + back + rows * (window - 1)
    place = torch.where(seen >= start, chunk, old)
    unread = seen < window_from[row].clamp(min=0).unsqueeze(1)
    index[:, :window] = place.masked_fill(unread, -1).to(torch.int32)
    if blocks is not None and columns:
        visible = ((position + 1) // blocks.ratio).clamp(max=columns)
        lengths += visible.to(torch.int32)
        if not chosen:
            block = torch.arange(columns, device=device)
            place = rows * (window - 1) + tokens + blocks.base[row].unsqueeze(1) + block
            place = place.masked_fill(block >= visible.unsqueeze(1), -1)
            index[:, window : window + columns] = place.to(torch.int32)
    return index, lengths
