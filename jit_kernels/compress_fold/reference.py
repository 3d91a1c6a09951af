"""Blocks of 128 tokens, as the references after each other."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.compress_kv.reference import fold_blocks
from jit_kernels.store_kv.reference import norm_rope_store

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves

RATIO = 128


def fold_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: "EndedBlocks",
    pages: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance decoding rows; see `jit_kernels.compress_fold.fold_tokens`."""
    live = (position >= 0).nonzero()[:, 0]
    width, banks, flat = rows.shape[1] // 2, state.shape[1], state.flatten(0, 1)
    place, first = position[live], ring[live].to(torch.int64) * banks
    start = _started(flat[first + (place - 1) % banks], place % RATIO == 0)
    mine = rows[live] + ape[place % RATIO]
    after = fold_blocks(mine[:, :width], mine[:, width:], start, [live.shape[0]])
    flat[first + place % banks] = after
    _store(after, ended.slots[live], ended.rotation[live], pages, eps, record_format)


def fold_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: "ChunkTokens",
    window_from: torch.Tensor,
    last: torch.Tensor,
    ended: "EndedBlocks",
    saves: "StateSaves",
    pages: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance chunks; see `jit_kernels.compress_fold.fold_chunks`."""
    width, banks, flat = rows.shape[1] // 2, state.shape[1], state.flatten(0, 1)
    old = state[tokens.ring.to(torch.int64)].flatten(0, 1)
    mine = rows + ape[tokens.position % RATIO]
    after: list[torch.Tensor] = []
    for token, (row, place) in enumerate(
        zip(tokens.row.tolist(), tokens.position.tolist(), strict=True)
    ):
        begins = place % RATIO == 0
        if place > tokens.start[row]:
            start = after[-1]
        else:
            begins |= place <= int(window_from[row])
            start = old[row * banks + (place - 1) % banks].unsqueeze(0)
        start = _started(start, torch.tensor([begins], device=rows.device))
        one = mine[token : token + 1]
        after.append(fold_blocks(one[:, :width], one[:, width:], start, [1]))
    states = torch.cat((old, *after))
    ends = ended.slots > 0
    finished = states[last[ends] + old.shape[0]]
    _store(finished, ended.slots[ends], ended.rotation[ends], pages, eps, record_format)
    kept = saves.source >= 0
    flat[saves.target[kept]] = states[saves.source[kept]]


def _started(state: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Return states [S, 3, D], those that begin a block empty."""
    empty = torch.zeros_like(state)
    empty[:, 0] = -torch.inf
    return torch.where(begins.view(-1, 1, 1), empty, state)


def _store(
    states: torch.Tensor,
    slots: torch.Tensor,
    rotation: torch.Tensor,
    pages: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Store the means of whole blocks: those with a slot above 0."""
    ends = slots > 0
    means = states[ends, 2] / states[ends, 1]
    more = pages.weight, rotation[ends], eps, record_format
    norm_rope_store(pages.pages, slots[ends], means, pages.layout, *more)
