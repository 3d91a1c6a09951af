"""Steps of a compressor: chunks of some rows, the blocks they finish, what they save.

Entries of rings hold numbers only where a position before the chunk left some; all else is NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import gather_rows

__all__ = [
    "Chunk",
    "Step",
    "assert_like_pages",
    "block_pages",
    "by_token",
    "poisoned_state",
    "some_step",
    "turns",
]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, start + length) of a row whose state is in `ring`.

    saved  positions before which the state is saved besides that at the chunk's end
    """

    start: int
    length: int
    ring: int
    saved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments of `pool_chunks` and `fold_chunks` that say what is where."""

    tokens: ChunkTokens
    last: Tensor
    ended: EndedBlocks
    saves: StateSaves


def turns(positions: Tensor, channels: int) -> Tensor:
    """Return [m, 2, R]: the rotation of each position."""
    speed = torch.logspace(0, -3, channels // 2).repeat_interleave(2)
    angle = positions.to(torch.float32).unsqueeze(1) * speed
    sign = torch.tensor([-1.0, 1.0]).repeat(channels // 2)
    return torch.stack((angle.cos(), angle.sin() * sign), 1)


def block_pages(blocks: int, layout: PageLayout, width: int) -> BlockPages:
    """Return poisoned pages with room for this many blocks after page 0, and a norm."""
    units = 1 + -(-blocks // layout.page_rows)
    pages = torch.full((units, layout.page_bytes), 255, dtype=torch.uint8)
    return BlockPages(pages, layout, torch.randn(width))


def slot_of(ring: int, position: int, ratio: int, page_rows: int) -> int:
    """Return where the block that ends at a position of the row in `ring` is stored."""
    return page_rows + ring * 16 + position // ratio % 16


def poisoned_state(chunks: list[Chunk], rings: int, span: int, *shape: int) -> Tensor:
    """Return [rings, span, *shape] float32 with what positions before the chunks left."""
    state = torch.full((rings, span, *shape), torch.nan)
    for chunk in chunks:
        for position in range(max(0, chunk.start - span), chunk.start):
            # Sums of weights are positive.
            state[chunk.ring, position % span] = torch.randn(shape).abs() + 0.5
    return state


def some_step(
    chunks: list[Chunk], *, ratio: int, span: int, turned: int, page_rows: int
) -> tuple[Step, int]:
    """Return a step, and how many rings it needs.

    Saves go to rings after those of the chunks; lists end with entries that name nothing.
    """
    position, row, last, slots, first = ([0] * 0 for _ in range(5))
    source, target = [0] * 0, [0] * 0
    rings = 1 + max(chunk.ring for chunk in chunks)
    old = len(chunks) * span
    for nth, chunk in enumerate(chunks):
        shift = len(position) - chunk.start
        end = chunk.start + chunk.length
        for place in range(chunk.start, end):
            if place % ratio == ratio - 1:
                last.append(shift + place)
                slots.append(slot_of(chunk.ring, place, ratio, page_rows))
                first.append(place - ratio + 1)
        for save in (*chunk.saved, end):
            ring = chunk.ring if save == end else rings
            rings += save != end
            for place in range(max(0, save - span), save):
                fresh = place >= chunk.start
                if fresh or ring != chunk.ring:
                    held = nth * span + place % span
                    source.append(old + shift + place if fresh else held)
                    target.append(ring * span + place % span)
        position += range(chunk.start, end)
        row += [nth] * chunk.length
    tokens = ChunkTokens(
        torch.tensor(position),
        torch.tensor(row),
        torch.tensor([chunk.start for chunk in chunks]),
        torch.tensor([chunk.ring for chunk in chunks], dtype=torch.int32),
    )
    ended = EndedBlocks(
        torch.tensor([*slots, 0, -1]), turns(torch.tensor([*first, 1 << 40, -5]), turned)
    )
    ends = torch.tensor([*last, 0, -(1 << 40)])
    saves = StateSaves(torch.tensor([*source, -1]), torch.tensor([*target, -(1 << 40)]))
    return Step(tokens, ends, ended, saves), rings


def by_token(chunks: list[Chunk]) -> list[list[tuple[int, Chunk]]]:
    """Return decode steps that do what the chunks do: (row, its chunk of one token) of each."""
    longest = max(chunk.length for chunk in chunks)
    return [
        [
            (nth, Chunk(chunk.start + done, 1, chunk.ring))
            for nth, chunk in enumerate(chunks)
            if done < chunk.length
        ]
        for done in range(longest)
    ]


def assert_like_pages(got: BlockPages, want: BlockPages, *, what: str) -> None:
    """Fail unless pages hold the same but for rounding, and poison in the same rows."""
    layout = got.layout
    slots = torch.arange(want.pages.shape[0] * layout.page_rows)
    have, goal = (gather_rows(each.pages, slots, layout) for each in (got, want))
    blank = (goal == 255).all(1)
    assert bool((have[blank] == 255).all()), f"{what}: a row is written that should not be"
    assert bool((got.pages[:, layout.page_rows * layout.row_bytes :] == 255).all()), what
    have, goal = have[~blank], goal[~blank]
    assert not goal.numel() or float((have != goal).float().mean()) < 5e-3, what
    assert not bool((have == 255).all(1).any()), f"{what}: a row is missing"
