"""Everything about one step that all layers share: made once, before the first layer.

Each layer attends over one list of keys,

    [ a row of zeros | n * (window - 1) keys before the chunks | T keys of the chunks | blocks ]

and the plan says which of them each token sees. Slot j of a token's window is always position
t - window + 1 + j, slot j of its blocks the j-th block it attends: the order of a sum depends
on the position alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.compression_plan import (
    FoldPlan,
    PoolingPlan,
    fold_plan,
    pad_tile,
    pooling_plan,
)
from layers.steps.step_tokens import SaveList, StepTokens
from mem_cache.spec import TreeSpec

__all__ = ["AttentionPlan", "WindowPlan", "plan_attention", "window_saves"]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Sliding windows of a step.

    old_slots  [n * (window - 1)] int64 SWA slots of the positions before the chunks; 0: none
    index      [T, K] int64 keys in each token's window; 0: none
    saves      window slots to write, sources in [keys before the chunks; keys of the chunks]
    """

    old_slots: Tensor
    index: Tensor
    saves: SaveList


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step for all layers.

    row                  [T] int64
    rotation             [T, 2, R] float32 of layers without compression; None: there are none
    compressed_rotation  [T, 2, R] float32 of layers with it; None: there are none
    """

    row: Tensor
    rotation: Tensor | None
    compressed_rotation: Tensor | None
    window: WindowPlan
    pooling: PoolingPlan | None
    fold: FoldPlan | None


def plan_attention(
    batch: ForwardBatch, spec: PoolSpec, *, live: int = 0, top_k: int, rope: RopeFrequencies
) -> AttentionPlan:
    """Derive the plan of a step from its batch.

    live   rings in the rows' form, PoolSizes.live_states
    top_k  blocks of 4 that a token attends at most
    """
    tokens = StepTokens(batch, draft_tokens=spec.tree.draft_tokens)
    window = _window_plan(tokens, spec)
    ratios = set(spec.layer_ratios)
    first_block = 1 + tokens.rows * (spec.tree.window - 1) + tokens.count
    pooling = fold = None
    if 4 in ratios:
        pooling = pooling_plan(
            tokens,
            spec,
            live=live,
            rope=rope,
            top_k=top_k,
            window_index=window.index,
            first_block=first_block,
        )
    if 128 in ratios:
        fold = fold_plan(
            tokens,
            spec,
            live=live,
            rope=rope,
            window_index=window.index,
            first_block=first_block,
        )

    def rotation(compressed: bool) -> Tensor:
        return rope.rotation(tokens.position, compressed=compressed)

    return AttentionPlan(
        row=tokens.row,
        rotation=rotation(False) if 0 in ratios else None,
        compressed_rotation=rotation(True) if ratios - {0} else None,
        window=window,
        pooling=pooling,
        fold=fold,
    )


def _window_plan(tokens: StepTokens, spec: PoolSpec) -> WindowPlan:
    tree, batch = spec.tree, tokens.batch
    span = tree.window - 1
    position, readable = tokens.before(span)
    column = position // tree.swa_page_size % tree.window_pages
    page = batch.window.gather(1, column).to(torch.int64)
    old_slots = page * tree.swa_page_size + position % tree.swa_page_size
    return WindowPlan(
        old_slots=old_slots.masked_fill_(~readable, 0).flatten(),
        index=_window_index(tokens, tree.window),
        saves=window_saves(tokens, spec.tree),
    )


def _window_index(tokens: StepTokens, window: int) -> Tensor:
    row = tokens.row
    start = tokens.batch.chunk_start[row].unsqueeze(1)
    lowest = tokens.batch.window_from[row].clamp(min=0).unsqueeze(1)
    back = torch.arange(1 - window, 1, device=tokens.device)
    position = tokens.position.unsqueeze(1) + back
    # Entry 0 is the row of zeros, then window - 1 old keys a row, the last of them start - 1.
    old = position - start + (row * (window - 1) + window).unsqueeze(1)
    chunk = tokens.index.unsqueeze(1) + back + (1 + tokens.rows * (window - 1))
    index = torch.where(position >= start, chunk, old)
    return pad_tile(index.masked_fill_(position < lowest, 0))


def window_saves(tokens: StepTokens, tree: TreeSpec) -> SaveList:
    """Return the SWA slots to write; before each chunk there are `window - 1` keys."""
    batch = tokens.batch
    save, row, position = tokens.saved(tree.window)
    column = position // tree.swa_page_size % tree.window_pages
    offset = position % tree.swa_page_size
    target = batch.save_window[save, column].to(torch.int64) * tree.swa_page_size + offset
    held = batch.window[row, column].to(torch.int64) * tree.swa_page_size + offset
    span = tree.window - 1
    kept = position - batch.chunk_start[row] + span
    return tokens.save_list(row, position, span=span, kept=kept, target=target, held=held)
