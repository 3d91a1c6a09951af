"""What an executor keeps by line: where its KV is, how it is sampled, and how far it has come."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from layers.staging import stage
from runtime.executor.line_tables import LineTables
from runtime.executor.penalties import has_penalty
from runtime.executor.plan_rows import LENGTH, PlanRows, sampled_entries
from runtime.executor.sampler import DrawnTokens, Sampler
from runtime.wire.arrays import INT32, packed, unpacked
from runtime.wire.step import VERSION, Failure, KeptResult, SampleKept, StepPlan

__all__ = ["Lines", "PendingRun"]


class PendingRun(Protocol):
    """Tokens of a line of which only the device knows how many there are."""

    def read(self) -> tuple[int, int]:
        """Wait for them; return the line's length after them and the last one."""
        ...


class Lines:
    """The state of all lines, on the host and on the device.

    tables   where their KV is
    sampler  how they are sampled
    last     [lines] int64 on the device, the token sampled last of each
    """

    def __init__(self, tables: LineTables, sampler: Sampler, last: Tensor) -> None:
        self.tables = tables
        self.sampler = sampler
        self.last = last
        # Lines whose token in `last` is their own, and may be fed.
        self._has_last = np.zeros(len(last), dtype=bool)
        self._kept: dict[int, tuple[Tensor, int]] = {}
        self._runs: dict[int, PendingRun] = {}

    def begin(self, plan: StepPlan) -> PlanRows:
        """Take in what a plan changes, and return its rows, their starts known.

        Raises ValueError for a plan of another version, for rows that do not fit together, and for
        one that is fed with a token that was not sampled.
        """
        if plan.version != VERSION:
            raise ValueError(f"a plan of version {plan.version}, and this executor has {VERSION}")
        left = unpacked(plan.changes.left, INT32).tolist()
        for line in (*left, *(join.line for join in plan.joins)):
            self._forget(line)
        self.tables.apply(plan.changes)
        self.sampler.update(left, plan.joins)
        rows = PlanRows.of(plan.rows)
        if self._runs or (rows.from_device == LENGTH).any():
            rows = rows.starting_at(self._starts(rows))
        fed = rows.line[rows.fed]
        if not self._has_last[fed].all():
            bare = fed[~self._has_last[fed]].tolist()
            raise ValueError(f"lines {bare} are fed, and nothing was sampled for them")
        if rows.drafts.any():
            self._check_drafts(plan, rows)
        return rows

    def _forget(self, line: int) -> None:
        """Forget what was sampled for a line, and what is kept of it."""
        self._kept.pop(line, None)
        self._runs.pop(line, None)
        if line < len(self._has_last):
            self._has_last[line] = False

    def _starts(self, rows: PlanRows) -> np.ndarray:
        """Return where rows start; those that only the device knows are waited for."""
        starts = rows.start.copy()
        for i, line in enumerate(rows.line.tolist()):
            run = self._runs.pop(line, None)
            if rows.from_device[i] == LENGTH and run is None:
                raise ValueError(f"line {line} has no drafts in flight, and no start")
            if rows.from_device[i] == 0 or run is None:
                continue
            if rows.from_device[i] != LENGTH:
                raise ValueError(f"line {line} has drafts in flight, and its start is given")
            length, token = run.read()
            if length > rows.start[i]:
                raise ValueError(f"line {line} is at {length}, past the bound {rows.start[i]}")
            starts[i] = length
            self.last[line] = token
            self._has_last[line] = True
        return starts

    def _check_drafts(self, plan: StepPlan, rows: PlanRows) -> None:
        if (rows.drafts >= rows.count).any():
            raise ValueError("a row has as many drafts as tokens")
        row, lines = sampled_entries(plan)
        for line in lines[rows.drafts[row] > 0].tolist():
            state = self.sampler.state(line)
            if state.constrained or has_penalty(state):
                raise ValueError("a line with penalties or a grammar has drafts")

    def note_run(self, line: int, run: PendingRun) -> None:
        """Note that only the device knows the length of a line after a launched step."""
        self._runs[line] = run

    def note_last(self, lines: np.ndarray, tokens: Tensor, there: Tensor) -> None:
        """Keep the tokens that lines were given, for the step after this one.

        lines   [s] int32; those past the tables' are nobody's for longer than a step
        tokens  [s] int64 on the device
        there   [s] int64 `lines` on the device
        """
        count = len(self.last)
        own = lines < count
        self._has_last[lines[own]] = True
        if own.all():
            self.last.index_copy_(0, there, tokens)
            return
        at = stage(np.flatnonzero(own), self.last.device)
        self.last.index_copy_(0, there.index_select(0, at), tokens.index_select(0, at))

    def keep(self, line: int, logits: Tensor, position: int) -> None:
        """Keep the logits [V] that a line's token at `position` is sampled from later."""
        self._forget(line)
        self._kept[line] = logits.clone(), position

    @torch.inference_mode()
    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample kept lines. Raises KeyError for a line without kept logits."""
        self.sampler.mask(command.masks)
        lines = unpacked(command.lines, INT32)
        logits, positions = zip(*(self._kept.pop(line) for line in lines.tolist()), strict=True)
        drawn = self.sampler.draw(torch.stack(logits), lines, np.array(positions, dtype=np.int64))
        self.note_last(lines, drawn.tokens, self.sampler.lines_there(lines))
        return _kept_result(command.call, drawn)


def _kept_result(call: int, drawn: DrawnTokens) -> KeptResult:
    told = drawn.read()
    count = len(told.tokens)
    accepted = np.array([row not in told.failures for row in range(count)], dtype=np.int32)
    return KeptResult(
        call,
        accepted=packed(accepted, INT32),
        tokens=packed(told.tokens[accepted != 0], INT32),
        failures=[Failure(row, why) for row, why in told.failures.items()],
        logprobs=told.logprobs,
    )
