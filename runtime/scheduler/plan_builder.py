"""Rows of a step -> its plan as plain data, and the commands that sample it."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

import runtime.scheduler.row_units as row_units
from mem_cache.request_table import RowChanges
from runtime.scheduler.pending_points import Save
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.step_rows import StepRows
from runtime.wire.arrays import FLOAT32, INT32, INT64, UINT8, packed
from runtime.wire.step import (
    VERSION,
    Copies,
    Join,
    LineSampling,
    Mask,
    Rows,
    Sample,
    SampleKept,
    Saves,
    StepPlan,
    TableChanges,
)

__all__ = ["PlanBuilder", "told_copies"]

_SEED_MASK = (1 << 64) - 1
_MOST_INT32 = (1 << 31) - 1


class PlanBuilder:
    """Makes plans and commands, and knows what the executor was told so far.

    A line is told how it is sampled when its prompt ends: with the plan that first samples it.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._table = residency.table
        self._calls = 0
        # Lines past those of the table, of twins in the last step that had any.
        self._guests = 0
        self._masks: dict[int, np.ndarray] = {}

    def build(self, rows: StepRows, *, step: int, decoding: int) -> StepPlan:
        """Return the plan of a step, which takes along all copies and table changes that are due.

        step      its number
        decoding  how many of the rows are of lines that were told how they are sampled
        """
        changes = self._changes(self._table.take_changes())
        joins, sampled = self._joins(rows, decoding), rows.sampled
        entries = np.stack((sampled, rows.line[sampled]), axis=1)
        if rows.twins:
            guests = [(row, self._table.rows + k) for k, (row, _) in enumerate(rows.twins)]
            entries = np.concatenate((entries, guests))
        return StepPlan(
            VERSION,
            step,
            changes=changes,
            joins=joins,
            copies=told_copies(self._residency.take_copies()),
            rows=_rows(rows),
            saves=_saves(rows.saves) if rows.saves else Saves(),
            sampled=packed(entries, INT32),
            spans=rows.spans,
            sampling=None if rows.is_constrained else Sample(step),
        )

    def sample(self, plan: StepPlan, rows: StepRows, *, kept: Sequence[Request]) -> Sample:
        """Return the command that samples a launched step.

        kept  those whose masks are not known: their logits are kept
        """
        sampled: list[int] = rows.sampled.tolist()
        lines = [(rows.requests[row].row, rows.requests[row]) for row in sampled]
        lines += [(self._table.rows + k, twin) for k, (_, twin) in enumerate(rows.twins)]
        return Sample(plan.step, self._new_masks(lines), packed([r.row for r in kept], INT32))

    def sample_kept(self, requests: Sequence[Request]) -> SampleKept:
        """Return the command that samples requests whose logits were kept."""
        self._calls += 1
        lines = [(request.row, request) for request in requests]
        return SampleKept(
            self._calls, packed([line for line, _ in lines], INT32), self._new_masks(lines)
        )

    def _changes(self, changes: RowChanges) -> TableChanges:
        left = [
            *changes.released.tolist(),
            *range(self._table.rows, self._table.rows + self._guests),
        ]
        return TableChanges(
            packed(left, INT32) if left else b"",
            *(packed(part, INT32) for part in (changes.pages, changes.windows, changes.states)),
        )

    def _joins(self, rows: StepRows, decoding: int) -> list[Join]:
        """Return how lines are sampled that the executor does not know yet."""
        first_sampled: list[int] = [row for row in rows.sampled.tolist() if row >= decoding]
        fresh = [rows.requests[row] for row in first_sampled]
        self._guests = len(rows.twins)
        joins = [Join(request.row, _line_sampling(request)) for request in fresh]
        joins += [
            Join(self._table.rows + k, _line_sampling(twin))
            for k, (_, twin) in enumerate(rows.twins)
        ]
        for join in joins:
            self._masks.pop(join.line, None)
        return joins

    def _new_masks(self, lines: Iterable[tuple[int, Request]]) -> list[Mask]:
        """Return the masks of lines where they are others than the executor knows."""
        masks: list[Mask] = []
        for line, request in lines:
            mask = None if request.constraint is None else request.constraint.allowed
            if mask is not None and mask is not self._masks.get(line):
                self._masks[line] = mask
                masks.append(Mask(line, packed(mask, INT32)))
        return masks


def _rows(rows: StepRows) -> Rows:
    return Rows(
        line=packed(rows.line, INT32),
        start=packed(rows.start, INT64),
        count=packed(rows.count, INT32),
        ids=packed(rows.ids, INT32),
        from_device=_unless_zero(rows.from_device, UINT8),
        window_from=_unless_zero(rows.window_from, INT64),
        write_from=_unless_zero(rows.write_from, INT64),
    )


def _unless_zero(values: np.ndarray, dtype: np.dtype) -> bytes:
    return packed(values, dtype) if values.any() else b""


def told_copies(copies: row_units.Copies) -> Copies:
    """Return copies as a plan has them."""
    return Copies(*(_copied(some) for some in (copies.pages, copies.swa, copies.states)))


def _copied(copies: Sequence[tuple[int, ...]]) -> bytes:
    return packed(copies, INT32) if copies else b""


def _saves(saves: list[tuple[int, Save]]) -> Saves:
    return Saves(
        row=packed([row for row, _ in saves], INT32),
        position=packed([save.position for _, save in saves], INT64),
        state=packed([save.state for _, save in saves], INT32),
        window=packed(np.stack([save.window for _, save in saves]), INT32),
    )


def _line_sampling(request: Request) -> LineSampling:
    sampling, logprobs = request.sampling, request.logprobs
    prompt, output = np.split(request.tokens[: request.total], [request.prompt_tokens])
    repeats = sampling.repetition_penalty != 1.0
    counts = repeats or sampling.presence_penalty or sampling.frequency_penalty
    bias = sampling.logit_bias
    return LineSampling(
        seed=sampling.seed & _SEED_MASK,
        prompt_tokens=request.prompt_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        min_new_tokens=sampling.min_new_tokens,
        prompt=packed(prompt, INT32) if repeats else b"",
        output=packed(output, INT32) if counts else b"",
        bias_ids=_ids(bias),
        bias_values=_values(bias.values()) if bias else b"",
        stop_ids=packed(sorted(request.stop_ids), INT32) if sampling.min_new_tokens else b"",
        constrained=request.constraint is not None,
        top_logprobs=-1 if logprobs is None else logprobs.top,
        logprob_ids=b"" if logprobs is None else _ids(logprobs.token_ids),
    )


def _ids(tokens: Collection[int]) -> bytes:
    """Return token ids as int32; what is outside of that is outside of any vocabulary, too."""
    if not tokens:
        return b""
    ids = np.fromiter(tokens, dtype=np.int64, count=len(tokens))
    return packed(ids.clip(-1, _MOST_INT32), INT32)


def _values(values: Collection[float]) -> bytes:
    return packed(np.fromiter(values, dtype=np.float64, count=len(values)), FLOAT32)
