"""A plan with its tables as arrays, under the names that `ForwardBatch` has."""

from dataclasses import dataclass

import numpy as np

from mem_cache.spec import TreeSpec
from runtime.executor.batch_builder import build_batch
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import PromptSpan, StepPlan

# Tables of tests have room for so many lines and pages.
LINES = 64
PAGES = 512

Pairs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PlanArrays:
    """One step: n rows, T tokens, m saves, s entries, as `ForwardBatch` has them.

    line         [n] line of each row
    feed         [n] bool whether a row's first token is the one sampled last for its line
    page_copies  (source, destination), as swa_copies and ring_copies
    sampled      [s] rows
    sampled_line [s] their lines; those past the tables' are of twins
    spans        of prompts
    """

    plan: StepPlan
    line: np.ndarray
    input_ids: np.ndarray
    chunk_start: np.ndarray
    chunk_len: np.ndarray
    page_table: np.ndarray
    window: np.ndarray
    ring: np.ndarray
    window_from: np.ndarray
    write_from: np.ndarray
    save_row: np.ndarray
    save_position: np.ndarray
    save_ring: np.ndarray
    save_window: np.ndarray
    feed: np.ndarray
    page_copies: Pairs
    swa_copies: Pairs
    ring_copies: Pairs
    sampled: np.ndarray
    sampled_line: np.ndarray
    spans: list[PromptSpan]

    @property
    def decodes(self) -> bool:
        """Whether each row is one token of a line that was sampled before, and is again."""
        single = len(self.input_ids) == len(self.line) == len(self.sampled)
        return single and not self.plan.joins

    @property
    def positions(self) -> np.ndarray:
        """[s] position that each sampled token will have."""
        return (self.chunk_start + self.chunk_len)[self.sampled]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Positions [start, stop) of each prompt span."""
        counts = [len(unpacked(span.targets, INT32)) for span in self.spans]
        return [(s.start, s.start + n) for s, n in zip(self.spans, counts, strict=True)]


class PlanReader:
    """Reads the plans of one scheduler, in their order."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec
        self.tables = LineTables(LINES, pages=PAGES, window_pages=spec.window_pages)

    def read(self, plan: StepPlan) -> PlanArrays:
        """Return a plan as arrays."""
        self.tables.apply(plan.changes)
        rows = PlanRows.of(plan.rows)
        batch = build_batch(plan, rows, self.tables, page_size=self.spec.page_size)
        names = (
            *("input_ids", "chunk_start", "chunk_len", "page_table", "window", "ring"),
            *("window_from", "write_from", "save_row", "save_position", "save_ring"),
            "save_window",
        )
        row, line = sampled_entries(plan)
        copies = plan.copies
        return PlanArrays(
            plan,
            line=rows.line,
            **{name: getattr(batch, name).numpy() for name in names},
            feed=rows.from_device != 0,
            page_copies=_pairs(copies.pages),
            swa_copies=_pairs(copies.windows),
            ring_copies=_pairs(copies.states, 3),
            sampled=row,
            sampled_line=line,
            spans=plan.spans,
        )


def _pairs(data: bytes, width: int = 2) -> Pairs:
    return [(a, b) for a, b, *_ in unpacked(data, INT32, -1, width).tolist()]
