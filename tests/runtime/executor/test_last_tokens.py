"""Which prefill steps decode, and what is left to copy after them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.last_tokens import as_decode, run_saves
from runtime.executor.step_plan import Phase, PromptLogprobSpan, StepPlan
from tests.testing.scheduler_rig import Rig

PROMPTS = (list(range(300)), list(range(20, 35)))


def repeated() -> StepPlan:
    """Return the prefill step of prompts that are cached but for their last token."""
    rig = Rig(PoolSizes(40, 40, 12), spec=TreeSpec(), chunk=400)
    for _ in range(2):
        for prompt in PROMPTS:
            rig.send(prompt, 3)
        rig.run()
    plan = [plan for plan in rig.plans if plan.phase is Phase.PREFILL][-1]
    assert plan.chunk_start.tolist() == [299, 14]
    return plan


def changed(plan: StepPlan, **fields: Any) -> StepPlan:
    return dataclasses.replace(plan, **fields)


def test_single_last_tokens_decode_into_the_rows_own_windows_and_rings() -> None:
    plan = repeated()

    decode = as_decode(plan)

    assert decode is not None
    assert decode.phase is Phase.DECODE
    assert decode.input_ids.tolist() == [299, 34]
    assert decode.save_row.tolist() == [0, 1]
    assert decode.save_ring.tolist() == plan.ring.tolist()
    assert decode.save_position.tolist() == [300, 15]
    assert decode.window is decode.save_window
    assert decode.samples is plan.samples


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": np.zeros(3, np.int32)},
        {"sampled": np.array([1])},
        {"sampled": np.array([1, 0])},
        {"sampled": np.array([0, 1, 1])},
        {"chunk_start": np.array([299, 0])},
        {"window_from": np.array([0, 3])},
        {"write_from": np.array([300, 0])},
        {"prompt_logprobs": [PromptLogprobSpan(0, 0, 1, np.zeros(1, np.int32), 0, ())]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_step_that_does_more_is_a_prefill(fields: dict[str, Any]) -> None:
    assert as_decode(changed(repeated(), **fields)) is None


class _Noting:
    """Pools that note what is copied."""

    def __init__(self) -> None:
        self.swa: list[tuple[int, int]] = []
        self.rings: list[tuple[int, int]] = []

    def copy_swa_pages(self, pairs: list[tuple[int, int]]) -> None:
        self.swa += pairs

    def copy_rings(self, pairs: list[tuple[int, int]]) -> None:
        self.rings += pairs


def test_resume_points_get_what_their_rows_have() -> None:
    plan, pools = repeated(), _Noting()
    assert plan.save_row.tolist() == [0, 0, 1, 1]
    decode = as_decode(plan)
    assert decode is not None

    run_saves(plan, decode, pools)  # pyright: ignore[reportArgumentType]

    (first, one, second, two) = plan.save_ring.tolist()
    assert pools.rings == [(first, one), (second, two)]
    wanted = plan.save_window[[1, 3]]
    own = plan.save_window[[0, 2]]
    kept = wanted != 0
    assert kept.any(1).all()
    assert (own[kept] != 0).all()
    assert pools.swa == [*zip(own[kept].tolist(), wanted[kept].tolist(), strict=True)]


def test_without_resume_points_nothing_is_copied() -> None:
    plan, pools = repeated(), _Noting()
    decode = as_decode(plan)
    assert decode is not None

    run_saves(decode, decode, pools)  # pyright: ignore[reportArgumentType]

    assert not pools.swa
    assert not pools.rings
