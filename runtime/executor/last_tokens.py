"""Prompts that are cached but for their last token decode it, alone or beside rows that decode.

That is what a repeated prompt leaves to compute, and one decode step does it at the price of
a token, as a graph, where launching a prefill takes the host longer than the device.
"""

from dataclasses import replace

import numpy as np

from mem_cache.pools import KvPools
from runtime.executor.step_plan import Phase, StepPlan

__all__ = ["as_decode", "run_saves"]


def as_decode(plan: StepPlan) -> StepPlan | None:
    """Return the decode step that computes what a prefill step does; None: there is none.

    Each row must be one token, which is sampled and not its first, and none may be in a replay:
    then all saves are at the rows' ends. Those of resume points are left to `run_saves`.
    """
    rows = len(plan.chunk_start)
    if len(plan.input_ids) != rows or len(plan.sampled) != rows or plan.prompt_logprobs:
        return None
    resumed = (plan.chunk_start > 0) & (plan.window_from == 0)
    if not (resumed & (plan.write_from <= plan.chunk_start)).all():
        return None
    if (plan.sampled != np.arange(rows)).any():
        return None
    own = _is_own(plan)
    window = plan.save_window[own]
    return replace(
        plan,
        phase=Phase.DECODE,
        window=window,
        save_row=plan.save_row[own],
        save_position=plan.save_position[own],
        save_ring=plan.save_ring[own],
        save_window=window,
    )


def run_saves(plan: StepPlan, decode: StepPlan, pools: KvPools) -> None:
    """Copy what rows have after their only token to the resume points that are made there.

    decode  what `as_decode` made of the plan
    """
    extra = ~_is_own(plan)
    rows, target = plan.save_row[extra], plan.save_window[extra]
    source, kept = decode.save_window[rows], target != 0
    pools.copy_swa_pages([*zip(source[kept].tolist(), target[kept].tolist(), strict=True)])
    rings = zip(plan.ring[rows].tolist(), plan.save_ring[extra].tolist(), strict=True)
    pools.copy_rings([*rings])


def _is_own(plan: StepPlan) -> np.ndarray:
    """Return which saves are into the rows' own rings, one a row, in their order: [m] bool."""
    return plan.save_ring == plan.ring[plan.save_row]
