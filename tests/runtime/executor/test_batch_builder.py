"""Plans as tensors: right types, right order of logits, nothing shared with the plan."""

import dataclasses

import numpy as np
import torch

from mem_cache.spec import PoolSizes
from runtime.executor.batch_builder import build_batch
from runtime.executor.step_plan import PromptLogprobSpan, StepPlan
from tests.testing.scheduler_rig import Rig

INT32 = {"page_table", "window", "ring", "save_ring", "save_window"}


def plans() -> list[StepPlan]:
    """Plans of two prompts, the second one in several chunks, and their decode steps."""
    rig = Rig(PoolSizes(40, 40, 10), chunk=16)
    rig.send(list(range(5)), 9)
    rig.send(list(range(20, 50)), 3)
    rig.run()
    return rig.plans


def test_every_field_has_its_type_and_the_values_of_the_plan() -> None:
    for plan in plans():
        batch = build_batch(plan)
        for field in dataclasses.fields(batch):
            tensor = getattr(batch, field.name)
            assert tensor.dtype == (torch.int32 if field.name in INT32 else torch.int64), field.name
            if field.name != "logit_tokens":
                assert tensor.tolist() == getattr(plan, field.name).tolist(), field.name


def test_the_last_token_of_each_sampled_row_gets_logits() -> None:
    first, *rest = plans()

    assert first.chunk_len.tolist() == [5, 11]
    assert build_batch(first).logit_tokens.tolist() == [4]
    decode = next(plan for plan in rest if len(plan.samples) == 2)
    assert build_batch(decode).logit_tokens.tolist() == [0, 1]


def test_prompt_positions_follow_the_sampled_rows_in_the_order_of_the_spans() -> None:
    plan = plans()[0]
    plan.chunk_start = np.array([100, 40], dtype=np.int64)
    plan.sampled = np.array([1], dtype=np.int64)
    none = np.zeros(0, dtype=np.int32)
    plan.prompt_logprobs = [
        PromptLogprobSpan(row=1, start=41, stop=44, targets=none, top=0, token_ids=()),
        PromptLogprobSpan(row=0, start=100, stop=102, targets=none, top=0, token_ids=()),
    ]

    batch = build_batch(plan)

    assert batch.logit_tokens.tolist() == [15, 6, 7, 8, 0, 1]


def test_a_step_may_want_no_logits_at_all() -> None:
    plan = plans()[0]
    plan.sampled = np.zeros(0, dtype=np.int64)

    assert build_batch(plan).logit_tokens.shape == (0,)
