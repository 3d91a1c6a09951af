"""A plan's rows and the lines' tables -> `ForwardBatch` in host memory."""

import numpy as np
import torch
from torch import Tensor

from layers.staging import stage
from layers.steps.forward_batch import FedTokens, ForwardBatch
from mem_cache.spec import div_ceil
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.wire.arrays import INT32, INT64, unpacked
from runtime.wire.step import StepPlan

__all__ = ["build_batch", "fed_tokens", "idle_batch", "logit_tokens"]


def build_batch(
    plan: StepPlan, rows: PlanRows, tables: LineTables, *, page_size: int
) -> ForwardBatch:
    """Return the tensors of a step; they share no memory with the tables.

    rows       of the plan, their starts known
    tables     up to date with the plan
    page_size  tokens in a full page

    The logits asked for are those of `logit_tokens`. Each row's save at its end comes first, then
    its others.
    """
    n = len(rows.line)
    state, window = tables.state[rows.line], tables.window[rows.line]
    columns = div_ceil(int(rows.end.max(initial=0)), page_size)
    saves = plan.saves
    beside = unpacked(saves.row, INT32)
    row = np.concatenate((np.arange(n), beside))
    order = np.argsort(row, kind="stable")
    width = window.shape[1]

    def saved(own: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.concatenate((own, others))[order]

    arrays = {
        "input_ids": rows.ids.astype(np.int64),
        "chunk_start": rows.start.astype(np.int64),
        "chunk_len": rows.count.astype(np.int64),
        "page_table": tables.pages[rows.line, :columns],
        "window": window,
        "ring": state,
        "window_from": rows.window_from.astype(np.int64),
        "write_from": rows.write_from.astype(np.int64),
        "save_row": row[order],
        "save_position": saved(rows.end, unpacked(saves.position, INT64)),
        "save_ring": saved(state, unpacked(saves.state, INT32)),
        "save_window": saved(window, unpacked(saves.window, INT32, len(beside), width)),
        "logit_tokens": logit_tokens(plan, rows),
    }
    return ForwardBatch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def idle_batch(window_pages: int) -> ForwardBatch:
    """Return a step of one token that leaves nothing but what dummy units hold.

    A rank without rows of its own takes part with it in the steps of the others.

    window_pages  of a row
    """
    zero, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    unit = torch.zeros(1, dtype=torch.int32)
    window = torch.zeros((1, window_pages), dtype=torch.int32)
    return ForwardBatch(
        input_ids=zero,
        chunk_start=zero,
        chunk_len=one,
        page_table=unit.view(1, 1),
        window=window,
        ring=unit,
        window_from=zero,
        write_from=zero,
        save_row=zero,
        save_position=one,
        save_ring=unit,
        save_window=window,
        logit_tokens=zero,
    )


def fed_tokens(rows: PlanRows, last: Tensor) -> FedTokens | None:
    """Return which of the T tokens only the device has; None: none of them.

    last  [lines] int64 on the device, the token sampled last of each line
    """
    fed = rows.fed
    if not len(fed):
        return None
    first = (np.cumsum(rows.count) - rows.count)[fed]
    both = np.stack((first, rows.line[fed])).astype(np.int64)
    places, lines = stage(both, last.device)
    return FedTokens(places, last.index_select(0, lines))


def logit_tokens(plan: StepPlan, rows: PlanRows) -> np.ndarray:
    """Return which of the T tokens' logits are wanted, [k] int64.

    Of each entry of `plan.sampled` those of the row's last token, and before it those of the
    tokens that its drafts are guesses behind; then those of each prompt span, in its order.
    """
    last = rows.last_index
    row, _ = sampled_entries(plan)
    drafts = rows.drafts[row]
    if drafts.any():
        ends: list[int] = (last[row] + 1).tolist()
        parts = [np.arange(end - 1 - k, end) for end, k in zip(ends, drafts.tolist(), strict=True)]
    else:
        parts = [last[row]]
    for span in plan.spans:
        count = len(unpacked(span.targets, INT32))
        begin = int(last[span.row] + 1 - rows.count[span.row] - rows.start[span.row])
        parts.append(begin + np.arange(span.start, span.start + count))
    return np.concatenate(parts).astype(np.int64)
