"""Steps of one token a row, which a decode step computes at the price of a token, as a graph.

A repeated prompt that is cached but for its last token leaves such a row to compute, alone or
beside rows that decode. Launching it as a chunk takes the host longer than the device.
"""

from typing import TYPE_CHECKING

import numpy as np

from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.wire.arrays import INT32, INT64, unpacked
from runtime.wire.step import StepPlan

if TYPE_CHECKING:
    # It brings torch along, which a scheduler over workers in other processes needs not.
    from layers.models.contract import Pools

__all__ = ["is_single_token_step", "run_saves"]


def is_single_token_step(plan: StepPlan, rows: PlanRows) -> bool:
    """Whether a decode step computes what a plan asks for, and `run_saves` what it saves.

    Each row must be one token, which is sampled and not its first, and none may be in a replay:
    then all saves are at the rows' ends.
    """
    if len(rows.ids) != len(rows.line) or plan.spans:
        return False
    row, _ = sampled_entries(plan)
    if not np.array_equal(row, np.arange(len(rows.line))):
        return False
    resumed = (rows.start > 0) & (rows.window_from == 0)
    return bool((resumed & (rows.write_from <= rows.start)).all())


def run_saves(plan: StepPlan, rows: PlanRows, tables: LineTables, pools: "Pools") -> None:
    """Copy what rows have after their only token to the resume points that are made there."""
    saves = plan.saves
    if not saves.row:
        return
    line = rows.line[unpacked(saves.row, INT32)]
    source = tables.window[line]
    target = unpacked(saves.window, INT32, *source.shape)
    kept = target != 0
    pools.copy_swa_pages([*zip(source[kept].tolist(), target[kept].tolist(), strict=True)])
    own, position = tables.state[line], unpacked(saves.position, INT64)
    states = np.stack((own, unpacked(saves.state, INT32), position), axis=1)
    if own.any():
        pools.copy_states([(int(a), int(b), int(at)) for a, b, at in states.tolist()])
