"""Step plans by hand: rows of lines with fixed units, how lines are sampled, what results say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import LAST_TOKEN, PlanRows
from runtime.wire.arrays import FLOAT32, INT32, INT64, UINT8, packed, unpacked
from runtime.wire.step import (
    VERSION,
    Copies,
    Join,
    KeptResult,
    LineSampling,
    Mask,
    PromptSpan,
    Rows,
    Sample,
    SampleKept,
    Saves,
    StepPlan,
    StepResult,
    TableChanges,
)


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of a step; fields without a word here are as in `runtime.wire.step.Rows`.

    sampled  whether its line is sampled
    twins    other lines that are sampled from its logits
    """

    line: int
    start: int
    ids: Sequence[int]
    from_device: int = 0
    drafts: int = 0
    window_from: int = 0
    write_from: int = 0
    sampled: bool = True
    twins: Sequence[int] = ()


class Plans:
    """Makes the plans of one executor, one after the other.

    Each of `lines` lines has `pages` full pages, a window and a ring of its own, which the first
    plan tells.
    """

    def __init__(self, tree: TreeSpec, *, lines: int = 4, pages: int = 2) -> None:
        self.tree, self.lines, self.pages = tree, lines, pages
        self.step = 0

    @property
    def sizes(self) -> PoolSizes:
        """The smallest pools that have all units."""
        windows = self.lines * self.tree.window_pages
        return PoolSizes(self.lines * self.pages, windows, self.lines)

    @property
    def tables(self) -> LineTables:
        """Empty tables for these lines."""
        return LineTables(self.lines, pages=self.pages, window_pages=self.tree.window_pages)

    def plan(
        self,
        *rows: PlannedRow,
        joins: Mapping[int, LineSampling] | None = None,
        left: Iterable[int] = (),
        spans: Iterable[PromptSpan] = (),
        sampled_later: bool = False,
        masks: Iterable[Mask] = (),
    ) -> StepPlan:
        """Return the next plan.

        sampled_later  it does not say how it is sampled
        masks          of the lines that it samples itself
        """
        self.step += 1
        entries = [
            (i, line)
            for i, row in enumerate(rows)
            for line in [*([row.line] if row.sampled else []), *row.twins]
        ]
        return StepPlan(
            VERSION,
            self.step,
            changes=self._changes([*left]),
            joins=[Join(line, sampling) for line, sampling in (joins or {}).items()],
            copies=Copies(),
            rows=packed_rows(rows),
            saves=Saves(),
            sampled=packed(entries, INT32),
            spans=[*spans],
            sampling=None if sampled_later else Sample(self.step, [*masks]),
        )

    def _changes(self, left: list[int]) -> TableChanges:
        told = packed(left, INT32)
        if self.step > 1:
            return TableChanges(told)
        line = np.arange(self.lines)
        return TableChanges(
            told,
            pages=_units(self.lines, self.pages),
            windows=_units(self.lines, self.tree.window_pages),
            states=packed(np.stack((line, line + 1), axis=1), INT32),
        )


def _units(lines: int, each: int) -> bytes:
    """Return (line, index, unit) of lines with `each` units of their own."""
    line, index = np.divmod(np.arange(lines * each), each)
    return packed(np.stack((line, index, 1 + np.arange(lines * each)), axis=1), INT32)


def packed_rows(rows: Sequence[PlannedRow]) -> Rows:
    """Return rows as the message has them."""
    dtypes = {"line": INT32, "start": INT64, "from_device": UINT8, "drafts": INT32}
    dtypes |= {"window_from": INT64, "write_from": INT64}
    columns = {
        name: packed([getattr(row, name) for row in rows], dtype) for name, dtype in dtypes.items()
    }
    return Rows(
        **columns,
        count=packed([len(row.ids) for row in rows], INT32),
        ids=packed([token for row in rows for token in row.ids], INT32),
    )


def fed(plan: StepPlan, *chosen: int) -> StepPlan:
    """Return a plan whose rows, all or those chosen, begin with tokens only the device has."""
    rows = PlanRows.of(plan.rows)
    which = [*(chosen or range(len(rows.line)))]
    from_device, ids = rows.from_device.copy(), rows.ids.copy()
    from_device[which] = LAST_TOKEN
    ids[(rows.last_index - rows.count + 1)[which]] = 0
    told = {"from_device": packed(from_device, UINT8), "ids": packed(ids, INT32)}
    return msgspec.structs.replace(plan, rows=msgspec.structs.replace(plan.rows, **told))


def line_sampling(
    *,
    prompt: Sequence[int] = (1, 2, 3),
    output: Sequence[int] = (),
    bias: Mapping[int, float] | None = None,
    stop_ids: Sequence[int] = (),
    logprob_ids: Sequence[int] = (),
    **given: Any,
) -> LineSampling:
    """Return how a line is sampled: greedily, unless `given` says otherwise."""
    settings: dict[str, Any] = {"seed": 11, "temperature": 0.0, "prompt_tokens": len(prompt)}
    return LineSampling(
        **{**settings, **given},
        prompt=packed(prompt, INT32),
        output=packed(output, INT32),
        bias_ids=packed([*(bias or {})], INT32),
        bias_values=packed([*(bias or {}).values()], FLOAT32),
        stop_ids=packed(stop_ids, INT32),
        logprob_ids=packed(logprob_ids, INT32),
    )


def mask_words(tokens: Iterable[int], vocab: int) -> np.ndarray:
    """Return the packed mask that allows these tokens, bits past the vocabulary unset."""
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[[*tokens]] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def mask(line: int, tokens: Iterable[int], vocab: int) -> Mask:
    """Return a line's mask that allows these tokens."""
    return Mask(line, packed(mask_words(tokens, vocab), INT32))


def sample_kept(*lines: int, masks: Iterable[Mask] = (), call: int = 1) -> SampleKept:
    """Return the command that samples kept lines."""
    return SampleKept(call, packed(lines, INT32), [*masks])


def entry_tokens(result: StepResult | KeptResult) -> list[list[int]]:
    """Return the tokens of each entry."""
    accepted, tokens = unpacked(result.accepted, INT32), unpacked(result.tokens, INT32)
    return [part.tolist() for part in np.split(tokens, np.cumsum(accepted))[: len(accepted)]]


def failures(result: StepResult | KeptResult) -> dict[int, str]:
    """Return why entries failed."""
    return {failure.entry: failure.reason for failure in result.failures}
