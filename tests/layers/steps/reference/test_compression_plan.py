"""Blocks that a step finishes, folds and may see."""

import torch

from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.compression_plan import (
    FoldPlan,
    PoolingPlan,
    fold_plan,
    pad_tile,
    pooling_plan,
    ring_saves,
)
from layers.steps.step_tokens import StepTokens
from tests.layers.steps.test_step_tokens import batch
from tests.testing.direct import CPU
from tests.testing.tiny_model import CONFIG

SPEC = pool_spec(CONFIG, "fp32")
FIRST = 1000


def pooling(step: ForwardBatch, top_k: int = 24) -> PoolingPlan:
    """Return the plan of blocks of 4."""
    return pooling_plan(
        StepTokens(step),
        SPEC,
        rope=angles(CONFIG, CPU),
        top_k=top_k,
        window_index=torch.zeros((14, 128), dtype=torch.int64),
        first_block=FIRST,
    )


def fold(step: ForwardBatch) -> FoldPlan:
    """Return the plan of blocks of 128."""
    return fold_plan(
        StepTokens(step),
        SPEC,
        rope=angles(CONFIG, CPU),
        window_index=torch.zeros((14, 128), dtype=torch.int64),
        first_block=FIRST,
    )


def test_a_block_of_four_pools_its_own_tokens_and_the_four_before() -> None:
    plan = pooling(batch())

    # Positions 252..259, tokens 2..9, all in the chunk, behind 2 * 8 state rows.
    assert plan.members.tolist() == [[16 + token for token in range(2, 10)]]
    assert plan.finished.slots.tolist() == [4 * 64]


def test_the_first_block_misses_its_first_four_slots() -> None:
    step = batch()
    step.chunk_start[1], step.write_from[1] = 2, 0

    plan = pooling(step)

    # Positions 2 and 3: 0 and 1 lie in the row's ring.
    assert plan.members[1].tolist() == [-1] * 4 + [8 + 0, 8 + 1, 16 + 12, 16 + 13]


def test_a_token_sees_blocks_that_ended_with_it_or_before() -> None:
    plan = pooling(batch(), top_k=64)

    assert plan.table.columns == 128
    assert plan.table.visible.tolist() == [(p + 1) // 4 for p in (*range(250, 262), 5, 6)]
    assert plan.table.slots[0, :65].tolist() == [3 * 64 + b for b in range(64)] + [4 * 64]
    assert plan.table.slots[0, 65:].tolist() == [0] * 63
    assert plan.table.slots[1, :2].tolist() == [7 * 64, 0]


def test_without_a_choice_the_plan_names_every_visible_block() -> None:
    assert pooling(batch(), top_k=127).index is None
    index = pooling(batch(), top_k=128).index

    assert index is not None
    assert index[0, 128:].tolist() == [FIRST + b for b in range(62)] + [0] * 66
    assert index[13, 128:].tolist() == [FIRST + 128, *[0] * 127]


def test_a_fold_cuts_chunks_at_multiples_of_128() -> None:
    plan = fold(batch())

    # Segments: [256, 262) of six tokens, [250, 256) of six, [5, 7) of two; row 0 starts anew.
    assert plan.active == (3, 3, 2, 2, 2, 2)
    assert plan.order.tolist()[:6] == [0, 6, 12, 1, 7, 13]
    assert plan.start_empty.tolist() == [True, True, False]
    assert int(plan.start_banks[2]) == 2 * 2 + 0
    assert plan.members.tolist() == []


def test_saved_states_are_those_after_the_last_two_tokens() -> None:
    plan = fold(batch())

    place = {token: i for i, token in enumerate(plan.order.tolist())}
    # Row 0 at 262; row 1 at 7 in place, then at 6 into ring 5, whose older half is its old bank.
    assert plan.saves.source.tolist() == [
        4 + place[10], 4 + place[11], 4 + place[12], 4 + place[13], 2 + 0, 4 + place[12],
    ]  # fmt: skip
    assert plan.saves.target.tolist() == [2, 3, 5, 4, 10, 11]


def test_a_finished_fold_is_the_state_after_its_last_token() -> None:
    step = batch()
    step.write_from[0] = 255

    plan = fold(step)

    assert plan.members.tolist() == [plan.order.tolist().index(5)]
    assert plan.finished.slots.tolist() == [3 * 2 + 1]


def test_padding_reaches_whole_tiles() -> None:
    assert pad_tile(torch.ones(2, 64)).shape == (2, 64)
    assert pad_tile(torch.ones(2, 65)).shape == (2, 128)
    assert float(pad_tile(torch.ones(2, 65)).sum()) == 130


def test_a_resume_point_keeps_only_what_lies_before_it_although_drafts_may_be_lost() -> None:
    spec, live = pool_spec(CONFIG, "fp32", draft_tokens=3), 9
    step = batch()
    # Two tokens, of which the second may be lost: the row itself keeps one position more.
    step.chunk_start[1], step.save_position[1:] = 20, torch.tensor([22, 21])
    tokens, behind = StepTokens(step, draft_tokens=3), (live + 1) * spec.state_rows
    step.save_ring[1] = live + 2

    saves = ring_saves(tokens, spec, 4, live=live)

    kept = saves.target >= behind
    assert (saves.target[kept] - behind).tolist() == [8 + p % 8 for p in range(14, 22)]
    # Six from the row's ring, then the tokens 12 and 13 of the step.
    held = [spec.state_rows + p % spec.state_rows for p in range(14, 20)]
    assert saves.source[kept].tolist() == [*held, *(2 * spec.state_rows + t for t in (12, 13))]
