"""Positions, rows and save lists of a step."""

import torch

from layers.steps.forward_batch import ForwardBatch
from layers.steps.step_tokens import StepTokens


def batch() -> ForwardBatch:
    """Return two rows: positions [250, 262) of one that replays from 250, and [5, 7) of another."""

    def row(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    return ForwardBatch(
        input_ids=torch.zeros(14, dtype=torch.int64),
        chunk_start=row(250, 5),
        chunk_len=row(12, 2),
        page_table=torch.tensor([[3, 4], [7, 0]], dtype=torch.int32),
        window=torch.zeros((2, 4), dtype=torch.int32),
        ring=row(1, 2, dtype=torch.int32),
        window_from=row(250, 0),
        write_from=row(256, 5),
        save_row=row(0, 1, 1),
        save_position=row(262, 7, 6),
        save_ring=row(1, 2, 5, dtype=torch.int32),
        save_window=torch.zeros((3, 4), dtype=torch.int32),
        logit_tokens=row(),
    )


def test_chunks_lie_end_to_end() -> None:
    tokens = StepTokens(batch())

    assert tokens.row.tolist() == [0] * 12 + [1] * 2
    assert tokens.position.tolist() == [*range(250, 262), 5, 6]


def test_blocks_are_finished_by_their_last_token_and_not_before_write_from() -> None:
    tokens = StepTokens(batch())

    # 251 and 255 end blocks of 4 too, but those were written before the replay.
    last = tokens.finishing(4)
    assert tokens.position[last].tolist() == [259]
    assert tokens.page_slots(last, 4, 256).tolist() == [4 * 64 + 0]
    assert tokens.finishing(128).tolist() == []


def test_positions_before_the_replay_are_not_readable() -> None:
    position, readable = StepTokens(batch()).before(3)

    assert position.tolist() == [[247, 248, 249], [2, 3, 4]]
    assert readable.tolist() == [[False] * 3, [True] * 3]


def test_saved_positions_are_those_before_each_save_that_were_computed() -> None:
    save, row, position = StepTokens(batch()).saved(8)

    # The replaying row has nothing before 250, the other nothing before 0.
    assert position[save == 0].tolist() == list(range(254, 262))
    assert position[save == 1].tolist() == list(range(7))
    assert position[save == 2].tolist() == list(range(6))
    assert row.tolist() == [0] * 8 + [1] * 13


def test_a_chunk_that_may_lose_tokens_saves_what_is_before_each_of_its_ends() -> None:
    step = batch()
    step.chunk_start[:] = torch.tensor([300, 295])
    step.window_from[:] = 0
    step.save_position[:] = torch.tensor([312, 297, 296])

    def saved(draft_tokens: int) -> list[list[int]]:
        save, _, position = StepTokens(step, draft_tokens=draft_tokens).saved(8)
        return [position[save == nth].tolist() for nth in range(3)]

    whole = [[*range(304, 312)], [*range(289, 297)], [*range(288, 296)]]
    assert saved(0) == whole
    whole[1].insert(0, 288)
    assert saved(1) == saved(7) == whole


def test_what_already_lies_where_it_is_wanted_is_not_copied() -> None:
    tokens = StepTokens(batch())
    save, row, position = tokens.saved(8)
    kept = position % 8
    target = tokens.batch.save_ring.long()[save] * 8 + kept
    held = tokens.batch.ring.long()[row] * 8 + kept

    saves = tokens.save_list(row, position, span=8, kept=kept, target=target, held=held)

    # Row 0 saves eight chunk tokens; row 1 its two tokens in place, then all six into ring 5.
    own, other = saves.target[8:10], saves.target[10:]
    assert saves.source[:8].tolist() == [16 + i for i in range(4, 12)]
    assert own.tolist() == [2 * 8 + 5, 2 * 8 + 6]
    assert saves.source[8:10].tolist() == [16 + 12, 16 + 13]
    assert other.tolist() == [5 * 8 + i for i in range(6)]
    assert saves.source[10:].tolist() == [8 + 0, 8 + 1, 8 + 2, 8 + 3, 8 + 4, 16 + 12]
