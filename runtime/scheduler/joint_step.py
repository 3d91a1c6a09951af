"""Steps of two kinds of rows: tokens that take part in somebody else's step.

A prompt of which only the last token is left joins the rows that decode: it is one token, as they
are, and so waits for no turn of its own, and holds up nobody. The last token of an answer, which
nobody waits for, is fed beside the chunks of a prefill step, if that is what comes next: whoever
goes on from the answer finds all of it in the cache.
"""

from dataclasses import replace

import numpy as np

from runtime.executor.step_plan import Phase, StepPlan
from runtime.scheduler.flight import Step

__all__ = ["joint_step", "with_closing"]

_CONCATENATED = (
    *("input_ids", "chunk_start", "chunk_len", "window", "ring", "window_from", "write_from"),
    *("save_position", "save_ring", "save_window", "positions"),
)


def joint_step(decode: Step, last: Step) -> Step:
    """Return one step of the rows of both, those of `decode` first.

    last  a prefill step of one token a row, all of them sampled, planned after `decode`

    It is a prefill step, for there are resume points to save.
    """
    plan = replace(_concatenated(decode.plan, last.plan), phase=Phase.PREFILL)
    rows = np.concatenate((decode.rows, last.rows))
    requests, reads = [*decode.requests, *last.requests], decode.reads or last.reads
    return Step(plan, requests, rows, len(decode.requests), flies=decode.flies, reads=reads)


def with_closing(prefill: Step, closing: StepPlan) -> Step:
    """Return a prefill step that feeds rows besides, of which nothing is told.

    closing  one token a row, none of them sampled, planned after `prefill`
    """
    return replace(prefill, plan=_concatenated(prefill.plan, closing))


def _concatenated(a: StepPlan, b: StepPlan) -> StepPlan:
    """Return a plan of the rows of both; what is told of a step is as in `a`."""
    arrays = {name: np.concatenate((getattr(a, name), getattr(b, name))) for name in _CONCATENATED}
    count = len(a.chunk_len)
    return replace(
        a,
        **arrays,
        page_table=_stacked(a.page_table, b.page_table),
        save_row=np.concatenate((a.save_row, b.save_row + count)),
        page_copies=a.page_copies + b.page_copies,
        swa_copies=a.swa_copies + b.swa_copies,
        ring_copies=a.ring_copies + b.ring_copies,
        sampled=np.concatenate((a.sampled, b.sampled + count)),
        samples=a.samples + b.samples,
        feed=_feeds(a, b),
    )


def _feeds(a: StepPlan, b: StepPlan) -> np.ndarray | None:
    if a.feed is None and b.feed is None:
        return None
    parts = (np.full(len(x.chunk_len), -1) if x.feed is None else x.feed for x in (a, b))
    return np.concatenate([*parts])


def _stacked(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return one table of both, as wide as the wider one."""
    width = max(a.shape[1], b.shape[1])
    return np.concatenate([np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b)])
