"""A step whose logits are there, or will be before anything that is launched after them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jit_kernels.likeliest import NOT_FINITE, likeliest
from layers.staging import Fetched, stage
from runtime.executor.lines import Lines
from runtime.executor.logprobs import joined, top_logprobs
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.executor.sampler import DrawnTokens, SampledTokens
from runtime.wire.arrays import INT32, UINT8, packed, unpacked
from runtime.wire.step import (
    NOT_FINITE_REASON,
    EntryLogprobs,
    Failure,
    PackedLogprobs,
    Sample,
    StepPlan,
    StepResult,
)

__all__ = ["LaunchedStep"]


class LaunchedStep:
    """Samples a step's entries and tells what came of it."""

    def __init__(
        self,
        plan: StepPlan,
        rows: PlanRows,
        lines: Lines,
        logits: Tensor,
        *,
        finite: Tensor | None = None,
        likely: Tensor | None = None,
    ) -> None:
        """Take what a forward pass left.

        logits  [k, V] float32 of `logit_tokens`
        finite  [n] bool whether each row's numbers were; None: all rows are sampled, and their
                logits tell
        likely  [k] int64 their likeliest tokens, where the step looked for them
        """
        self._plan = plan
        self._rows = rows
        self._lines = lines
        self._logits = logits
        self._finite = None if finite is None else Fetched(finite)
        self._codes: Fetched | None = None
        self._likely = likely
        self._entry_row, self._entry_line = sampled_entries(plan)
        # Logits of entry e are rows [first[e], first[e + 1]) of `logits`.
        drafts = rows.drafts[self._entry_row]
        self._first = np.concatenate(([0], np.cumsum(drafts + 1)))
        self._has_drafts = bool(drafts.any())
        self._chosen = np.arange(len(self._entry_line))
        self._drawn: DrawnTokens | None = None
        self._runs: list[list[int]] | None = None

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        return True

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step."""
        return True

    @torch.inference_mode()
    def sample(self, command: Sample) -> None:
        """Have the entries sampled, but for those whose logits are kept.

        Raises ValueError where the step was sampled, or is another one.
        """
        if self._drawn is not None or command.step != self._plan.step:
            raise ValueError(f"step {self._plan.step} is sampled again, or by {command.step}")
        lines, sampler = self._lines, self._lines.sampler
        sampler.mask(command.masks)
        logits, likely = self._logits[: self._first[-1]], self._likely
        if command.keep:
            self._keep(unpacked(command.keep, INT32))
            at = stage(self._first[self._chosen], logits.device)
            logits = logits.index_select(0, at)
            likely = None if likely is None else likely.index_select(0, at)
        of_lines, positions = self._sampled_rows()
        self._drawn = sampler.draw(logits, of_lines, positions, likely=likely)
        there = sampler.lines_there(of_lines)
        if self._has_drafts:
            self._note_runs(there)
        else:
            lines.note_last(of_lines, self._drawn.tokens, there)

    def _keep(self, kept: np.ndarray) -> None:
        """Put the logits of some lines aside, and sample the others."""
        if self._has_drafts:
            raise ValueError("logits of a step with drafts are kept")
        if self._finite is None:
            # The logits of those that are kept, too, tell whether their rows are finite.
            logits = self._logits[: self._first[-1]]
            self._codes = Fetched(likeliest(logits) if self._likely is None else self._likely)
        is_kept = np.isin(self._entry_line, kept)
        for entry in np.flatnonzero(is_kept).tolist():
            line, position = int(self._entry_line[entry]), int(self._end[entry])
            self._lines.keep(line, self._logits[entry], position)
        self._chosen = np.flatnonzero(~is_kept)

    @property
    def _end(self) -> np.ndarray:
        """[s] int64 position behind the last token of each entry's row."""
        return self._rows.end[self._entry_row]

    def _sampled_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return line and position of each row of logits that is sampled."""
        lines, ends = self._entry_line[self._chosen], self._end[self._chosen]
        if not self._has_drafts:
            return lines, ends
        counts = np.diff(self._first)
        back = np.concatenate([np.arange(1 - count, 1) for count in counts])
        return np.repeat(lines, counts), np.repeat(ends, counts) + back

    def _note_runs(self, there: Tensor) -> None:
        """Keep the tokens of entries without drafts; those of the others are known later."""
        assert self._drawn is not None
        guessed = self._rows.drafts[self._entry_row] > 0
        for entry in np.flatnonzero(guessed).tolist():
            self._lines.note_run(int(self._entry_line[entry]), _Run(self, entry))
        if not guessed.all():
            at = stage(self._first[:-1][~guessed], there.device)
            lines, tokens = self._entry_line[~guessed], self._drawn.tokens.index_select(0, at)
            self._lines.note_last(lines, tokens, there.index_select(0, at))

    def length_and_last(self, entry: int) -> tuple[int, int]:
        """Wait for an entry's tokens; return its row's length after them and the last one.

        One without a usable token has the row's own end and token 0.
        """
        run = self._accepted()[entry]
        row = self._entry_row[entry]
        if not run:
            return int(self._rows.end[row]), 0
        return int(self._rows.end[row] - self._rows.drafts[row]) + len(run) - 1, run[-1]

    @torch.inference_mode()
    def result(self) -> StepResult:
        """Wait for the tokens, and for log-probabilities of prompts where they are wanted.

        Raises ValueError for a step that was not sampled.
        """
        runs, told = self._accepted(), self._told
        chosen = self._chosen.tolist()
        entry_of = np.repeat(chosen, np.diff(self._first)[self._chosen]).tolist()
        first = self._first[entry_of] if self._has_drafts else entry_of
        failures = {
            entry_of[row]: why
            for row, why in told.failures.items()
            if not self._has_drafts or row == first[row]
        }
        return StepResult(
            self._plan.step,
            finite=packed(self._row_finite(failures), UINT8),
            accepted=packed([len(run) for run in runs], INT32),
            tokens=packed([token for run in runs for token in run], INT32),
            failures=[Failure(entry, why) for entry, why in failures.items()],
            logprobs=self._logprobs(entry_of),
            spans=[*self._spans()],
        )

    def _logprobs(self, entry_of: list[int]) -> list[EntryLogprobs]:
        """Return those of the tokens that entries go on with, in one piece each.

        entry_of  entry of each row that was sampled
        """
        runs, told = self._accepted(), self._told
        if not self._has_drafts:
            return [EntryLogprobs(entry_of[one.entry], one.logprobs) for one in told.logprobs]
        parts: dict[int, list[PackedLogprobs]] = {}
        for one in told.logprobs:
            entry = entry_of[one.entry]
            if one.entry - self._first[entry] < len(runs[entry]):
                parts.setdefault(entry, []).append(one.logprobs)
        return [EntryLogprobs(entry, joined(part)) for entry, part in parts.items()]

    @property
    def _told(self) -> SampledTokens:
        if self._drawn is None:
            raise ValueError("the result of a step that was not sampled")
        return self._drawn.read()

    def _accepted(self) -> list[list[int]]:
        """Return the tokens that each entry goes on with."""
        if self._runs is None:
            told = self._told
            tokens = told.tokens.tolist()
            self._runs = [[] for _ in self._entry_line]
            if self._has_drafts:
                for entry in range(len(self._runs)):
                    self._runs[entry] = self._run(entry, tokens, told.failures)
            else:
                for row, entry in enumerate(self._chosen.tolist()):
                    if row not in told.failures:
                        self._runs[entry].append(tokens[row])
        return self._runs

    def _run(self, entry: int, tokens: list[int], failures: dict[int, str]) -> list[int]:
        """Return the sampled tokens up to the first that is not what the draft behind it says."""
        first, last = int(self._first[entry]), int(self._first[entry + 1])
        row = self._entry_row[entry]
        end = int(np.cumsum(self._rows.count)[row])
        drafts = self._rows.ids[end - (last - first - 1) : end].tolist()
        run: list[int] = []
        for at, draft in zip(range(first, last), [*drafts, None], strict=True):
            if at in failures:
                break
            run.append(tokens[at])
            if tokens[at] != draft:
                break
        return run

    def _row_finite(self, failures: dict[int, str]) -> np.ndarray:
        """Return which rows were finite; what overflows behind the last layer is seen here."""
        finite = np.ones(len(self._rows.line), dtype=bool)
        if self._finite is not None:
            finite &= self._finite.read()[0].numpy()
        if self._codes is not None:
            finite[self._entry_row[self._codes.read()[0].numpy() == NOT_FINITE]] = False
        for entry, why in failures.items():
            finite[self._entry_row[entry]] &= why != NOT_FINITE_REASON
        return finite

    def _spans(self) -> Iterator[PackedLogprobs]:
        first = int(self._first[-1])
        for span in self._plan.spans:
            targets = unpacked(span.targets, INT32)
            logits = self._logits[first : first + len(targets)]
            ids = tuple(unpacked(span.ids, INT32).tolist())
            yield top_logprobs(logits, targets, span.top, ids)
            first += len(targets)


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of one entry of a step with drafts."""

    step: LaunchedStep
    entry: int

    def read(self) -> tuple[int, int]:
        """Wait for them; return the line's length after them and the last one."""
        return self.step.length_and_last(self.entry)
