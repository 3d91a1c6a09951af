"""Which keys a token's window names, in which slot."""

import torch

from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.steps.reference.attention_plan import plan_attention
from tests.layers.steps.test_step_tokens import batch
from tests.testing.direct import CPU
from tests.testing.tiny_model import CONFIG

SPEC = pool_spec(CONFIG, "fp32")
OLD = 127


def test_a_window_slot_is_a_position_relative_to_the_token() -> None:
    step = batch()

    plan = plan_attention(step, SPEC, top_k=CONFIG.index_topk, rope=angles(CONFIG, CPU))

    position = [*range(250, 262), 5, 6]
    for token in range(14):
        row, start = (0, 250) if token < 12 else (1, 5)
        for slot in range(128):
            seen = position[token] - 127 + slot
            got = int(plan.window.index[token, slot])
            if seen < (250 if row == 0 else 0):
                assert got == 0
            elif seen < start:
                assert got == 1 + row * OLD + OLD + seen - start
            else:
                assert got == 1 + 2 * OLD + token - (position[token] - seen)


def test_old_slots_follow_the_window_table() -> None:
    step = batch()
    step.window[1] = torch.tensor([9, 8, 7, 6])

    plan = plan_attention(step, SPEC, top_k=CONFIG.index_topk, rope=angles(CONFIG, CPU))

    old = plan.window.old_slots.view(2, OLD)
    assert (old[0] == 0).all(), "a replay reads no window"
    assert old[1, :122].tolist() == [0] * 122
    assert old[1, 122:].tolist() == [9 * 64 + position for position in range(5)]


def test_layers_of_each_kind_get_the_plan_they_need() -> None:
    plan = plan_attention(batch(), SPEC, top_k=CONFIG.index_topk, rope=angles(CONFIG, CPU))

    assert plan.rotation is not None
    assert plan.compressed_rotation is not None
    assert plan.pooling is not None
    assert plan.fold is not None
    assert not torch.equal(plan.rotation, plan.compressed_rotation)
