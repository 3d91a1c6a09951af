"""Places of chosen blocks in plain torch."""

import torch


def translate_blocks(
    blocks: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    page_blocks: int,
    row: torch.Tensor | None,
) -> None:
    """Write slots; see `jit_kernels.translate_blocks.translate_blocks`."""
    table = page_table if row is None else page_table[row]
    chosen = blocks.clamp(min=0).to(torch.int64)
    slots = table.gather(1, chosen // page_blocks) * page_blocks + chosen % page_blocks
    _write(slots, blocks, out)


def place_blocks(
    blocks: torch.Tensor, base: torch.Tensor, out: torch.Tensor, row: torch.Tensor
) -> None:
    """Write places; see `jit_kernels.translate_blocks.place_blocks`."""
    _write(blocks + base[row].unsqueeze(1), blocks, out)


def _write(places: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.fill_(-1)
    out[:, : blocks.shape[1]] = places.masked_fill(blocks < 0, -1).to(torch.int32)
