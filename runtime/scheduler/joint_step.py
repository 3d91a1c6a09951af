"""A step of rows that decode and of prompts of which only the last token is left.

Both are one token a row, which a decode step computes at the price of a row more; prompts that are
cached but for their last token so wait for no turn of their own, and hold up nobody.
"""

from dataclasses import replace

import numpy as np

from runtime.executor.step_plan import Phase
from runtime.scheduler.flight import Step

__all__ = ["joint_step"]

_CONCATENATED = (
    *("input_ids", "chunk_start", "chunk_len", "window", "ring", "window_from", "write_from"),
    *("save_position", "save_ring", "save_window", "positions"),
)


def joint_step(decode: Step, last: Step) -> Step:
    """Return one step of the rows of both, those of `decode` first.

    last  a prefill step of one token a row, all of them sampled, planned after `decode`

    Both sample ahead. It is a prefill step, for there are resume points to save.
    """
    a, b, count = decode.plan, last.plan, len(decode.requests)
    arrays = {name: np.concatenate((getattr(a, name), getattr(b, name))) for name in _CONCATENATED}
    plan = replace(
        a,
        **arrays,
        phase=Phase.PREFILL,
        page_table=_stacked(a.page_table, b.page_table),
        save_row=np.concatenate((a.save_row, b.save_row + count)),
        page_copies=a.page_copies + b.page_copies,
        swa_copies=a.swa_copies + b.swa_copies,
        ring_copies=a.ring_copies + b.ring_copies,
        sampled=np.concatenate((a.sampled, b.sampled + count)),
        samples=a.samples + b.samples,
        feed=None if a.feed is None else np.concatenate((a.feed, np.full_like(b.sampled, -1))),
    )
    rows = np.concatenate((decode.rows, last.rows))
    return Step(plan, [*decode.requests, *last.requests], rows, count)


def _stacked(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return one table of both, as wide as the wider one."""
    width = max(a.shape[1], b.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b)])
