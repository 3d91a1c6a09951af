"""What a step does to compressed blocks: which it finishes, which its tokens may see."""

from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.sparse_attention import KEY_TILE
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pool_spec import POINT_BANKS, POOLED_TOKENS, PoolSpec
from layers.models.deepseek_v4.pools import state_entry
from layers.steps.step_tokens import SaveList, StepTokens
from mem_cache.spec import TreeSpec, div_ceil

__all__ = [
    "BlockTable",
    "FinishedBlocks",
    "FoldPlan",
    "PoolingPlan",
    "fold_plan",
    "pad_tile",
    "pooling_plan",
    "ring_saves",
]


@dataclass(frozen=True, slots=True)
class FinishedBlocks:
    """Blocks that this step completes and must write, m of them.

    slots     [m] int64 full-page slots
    rotation  [m, 2, R] float32 at each block's first position
    """

    slots: Tensor
    rotation: Tensor


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Blocks that tokens may attend, B columns (a multiple of 64; 0: nobody sees a block).

    slots    [n, B] int64 full-page slots of each row's blocks; 0 past the last one
    row      [T] int64
    visible  [T] int64 blocks [0, visible) of its row are seen by a token
    """

    slots: Tensor
    row: Tensor
    visible: Tensor

    @property
    def columns(self) -> int:
        """Blocks per row, padding included."""
        return self.slots.shape[1]

    def index_of(self, blocks: Tensor, first_block: int) -> Tensor:
        """Return where blocks lie in the list of keys when all of `slots` are in it.

        blocks  [T, K] int64, -1 for none, which becomes 0

        Columns are added until K is a multiple of 64.
        """
        found = blocks + (self.row * self.columns + first_block).unsqueeze(1)
        return pad_tile(found.masked_fill_(blocks < 0, 0))


@dataclass(frozen=True, slots=True)
class PoolingPlan:
    """Blocks of 4 tokens: pooled over 8 slots, chosen by the indexer.

    phase       [T] int64 position % 4
    old_rows    [n * state_rows] int64 state rows of the rings before the chunks
    members     [m, 8] int64 of each finished block, into [old rows; rows of the chunks]; -1 before
                position 0
    finished    the blocks
    saves       state rows to write, sources in [old rows; rows of the chunks]
    table       blocks that may be seen
    index       [T, K] int64 keys of each token when all it may see is attended; None: choose
    """

    phase: Tensor
    old_rows: Tensor
    members: Tensor
    finished: FinishedBlocks
    saves: SaveList
    table: BlockTable
    window_index: Tensor
    first_block: int
    index: Tensor | None


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Blocks of 128 tokens: folded token by token.

    phase        [T] int64 position % 128
    order        [T] int64 tokens in the order `fold_blocks` takes them
    active       segments at work in each step
    start_banks  [S] int64 bank that holds each segment's state
    start_empty  [S] bool  the segment begins a block, whatever the bank holds
    members      [m] int64 state after each finished block's last token
    finished     the blocks
    old_banks    [n * state_banks] int64 banks of the rings before the chunks
    saves        banks to write, sources in [old banks; states]
    table        blocks that may be seen
    index        [T, K] int64 keys of each token
    """

    phase: Tensor
    order: Tensor
    active: tuple[int, ...]
    start_banks: Tensor
    start_empty: Tensor
    members: Tensor
    finished: FinishedBlocks
    old_banks: Tensor
    saves: SaveList
    table: BlockTable
    index: Tensor


def pooling_plan(
    tokens: StepTokens,
    spec: PoolSpec,
    *,
    live: int = 0,
    rope: RopeFrequencies,
    top_k: int,
    window_index: Tensor,
    first_block: int,
) -> PoolingPlan:
    """Plan the layers that compress by 4."""
    count = spec.state_rows
    ring = tokens.batch.ring.to(torch.int64)
    last = tokens.finishing(4)
    table = _block_table(tokens, spec.tree, 4)
    index = None
    if table.columns <= top_k:
        index = torch.cat((window_index, _all_visible(table, first_block)), 1)
    return PoolingPlan(
        phase=tokens.position % 4,
        old_rows=_ring_slots(ring, count),
        members=_pool_members(tokens, last, count),
        finished=_finished_blocks(tokens, last, ratio=4, tree=spec.tree, rope=rope),
        saves=ring_saves(tokens, spec, 4, live=live),
        table=table,
        window_index=window_index,
        first_block=first_block,
        index=index,
    )


def fold_plan(
    tokens: StepTokens,
    spec: PoolSpec,
    *,
    live: int = 0,
    rope: RopeFrequencies,
    window_index: Tensor,
    first_block: int,
) -> FoldPlan:
    """Plan the layers that compress by 128."""
    banks = spec.state_banks
    ring = tokens.batch.ring.to(torch.int64)
    order, active, first_token = _segments(tokens)
    state_of = torch.empty_like(order)
    state_of[order] = tokens.index
    last = tokens.finishing(128)
    saves = ring_saves(tokens, spec, 128, live=live)
    old = tokens.rows * banks
    chunk = saves.source >= old
    source = torch.where(chunk, state_of[(saves.source - old).clamp(min=0)] + old, saves.source)
    position, row = tokens.position[first_token], tokens.row[first_token]
    begins = (position % 128 == 0) | (position <= tokens.batch.window_from[row])
    table = _block_table(tokens, spec.tree, 128)
    return FoldPlan(
        phase=tokens.position % 128,
        order=order,
        active=active,
        start_banks=ring[row] * banks + (position - 1) % banks,
        start_empty=begins,
        members=state_of[last],
        finished=_finished_blocks(tokens, last, ratio=128, tree=spec.tree, rope=rope),
        old_banks=_ring_slots(ring, banks),
        saves=SaveList(source, saves.target),
        table=table,
        index=torch.cat((window_index, _all_visible(table, first_block)), 1),
    )


def _pool_members(tokens: StepTokens, last: Tensor, count: int) -> Tensor:
    back = torch.arange(-7, 1, device=tokens.device)
    position = tokens.position[last].unsqueeze(1) + back
    row = tokens.row[last].unsqueeze(1)
    chunk = last.unsqueeze(1) + back + tokens.rows * count
    old = row * count + position % count
    inside = position >= tokens.batch.chunk_start[row]
    return torch.where(inside, chunk, old).masked_fill_(position < 0, -1)


def _segments(tokens: StepTokens) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """Cut chunks at multiples of 128.

    Returns (tokens step by step, active segments per step, first token of each segment), the
    longest segment first.
    """
    position, index = tokens.position, tokens.index
    if tokens.count == tokens.rows:  # a decode step: every token is a segment
        return index, (tokens.count,), index
    begins = (position % 128 == 0) | (position == tokens.batch.chunk_start[tokens.row])
    first = begins.nonzero()[:, 0]
    segment = begins.cumsum(0) - 1
    lengths = torch.diff(first, append=first.new_full((1,), tokens.count))
    longest = torch.argsort(lengths, descending=True, stable=True)
    rank = torch.empty_like(longest)
    rank[longest] = torch.arange(first.shape[0], device=tokens.device)
    step = index - first[segment]
    order = torch.argsort(step * first.shape[0] + rank[segment])
    return order, tuple(torch.bincount(step).tolist()), first[longest]


def _finished_blocks(
    tokens: StepTokens, last: Tensor, *, ratio: int, tree: TreeSpec, rope: RopeFrequencies
) -> FinishedBlocks:
    """Return the blocks of `ratio` that the tokens `last` finish."""
    first_position = tokens.position[last] - (ratio - 1)
    return FinishedBlocks(
        slots=tokens.page_slots(last, ratio, tree.page_size),
        rotation=rope.rotation(first_position, compressed=True),
    )


def _block_table(tokens: StepTokens, tree: TreeSpec, ratio: int) -> BlockTable:
    batch, per_page = tokens.batch, tree.page_size // ratio
    blocks = (batch.chunk_start + batch.chunk_len) // ratio
    columns = div_ceil(int(blocks.max()), KEY_TILE) * KEY_TILE
    block = torch.arange(columns, device=tokens.device)
    page = (block // per_page).clamp_(max=batch.page_table.shape[1] - 1)
    slots = batch.page_table[:, page].to(torch.int64) * per_page + block % per_page
    slots.masked_fill_(block >= blocks.unsqueeze(1), 0)
    return BlockTable(slots, tokens.row, (tokens.position + 1) // ratio)


def _all_visible(table: BlockTable, first_block: int) -> Tensor:
    block = torch.arange(table.columns, device=table.slots.device)
    blocks = block.masked_fill(block >= table.visible.unsqueeze(1), -1)
    return table.index_of(blocks, first_block)


def _ring_slots(ring: Tensor, count: int) -> Tensor:
    entries = torch.arange(count, device=ring.device)
    return (ring.unsqueeze(1) * count + entries).flatten()


def ring_saves(tokens: StepTokens, spec: PoolSpec, ratio: int, *, live: int) -> SaveList:
    """Return the entries of rings to write in layers of a ratio, 4 or 128.

    live  rings in the rows' form, PoolSizes.live_states

    A row's ring has `spec.state_rows` or `spec.state_banks` of them, say e: position t is in
    t % e. One in a resume point's form has room for what lies right before its position alone.
    """
    count, span = spec.state_rows, POOLED_TOKENS
    if ratio == 128:
        count, span = spec.state_banks, POINT_BANKS
    ring = tokens.batch.ring.to(torch.int64)
    save, row, position = tokens.saved(span)
    saved = tokens.batch.save_ring.to(torch.int64)[save]
    if live:
        end = tokens.batch.save_position.index_select(0, save)
        needed = ((saved <= live) | (position >= end - span)).nonzero()[:, 0]
        saved, row, position = saved[needed], row[needed], position[needed]
    entry = position % count
    target = state_entry(saved, position, entries=count, span=span, live=live)
    held = ring[row] * count + entry
    return tokens.save_list(row, position, span=count, kept=entry, target=target, held=held)


def pad_tile(index: Tensor) -> Tensor:
    """Add columns of 0 (no key) to `index` [T, K] until K is a multiple of 64."""
    spare = -index.shape[1] % KEY_TILE
    return torch.nn.functional.pad(index, (0, spare)) if spare else index
