"""The largest steps that there can be, to see before serving what memory they take.

Their rows want of sampling whatever takes memory. Nothing they compute means anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jit_kernels.mask_logits import WORD_BITS
from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from runtime.wire.arrays import FLOAT32, INT32, INT64, packed
from runtime.wire.step import (
    VERSION,
    Copies,
    Join,
    LineSampling,
    Mask,
    PromptSpan,
    Rows,
    Sample,
    Saves,
    StepPlan,
    TableChanges,
)

__all__ = ["STEP_CONTEXT_TOKENS", "Extent"]

# Tokens before and in the chunks of one prefill step; a longer row runs alone.
STEP_CONTEXT_TOKENS = 1 << 20
_TOP_LOGPROBS = 20
# Rows that matrix products take at a time.
_TILE = 64
# Fewer rows than that make tiles of their own.
_SMALL_TILES = (8, 16, 32)
# Rows that the scores of decoding rows are planned for at a time.
_ROW_TILE = 32
# Copies over the units that nobody reads, for the kernels that make them.
_TO_DUMMY, _STATE_TO_DUMMY = packed([1, 0], INT32), packed([1, 0, 1], INT32)
# A grammar that allows every other token.
_EVEN_WORD = 0x55555555
# Kernels may be compiled anew for one row, for several, and for whole sixteens of them.
_FEW_ROWS = (1, 3, 16)


def _lengths(longest: int) -> list[int]:
    """Return sizes of steps up to `longest`: an eighth apart and less, and no finer than tiles."""
    few = [length for length in (1, 2, 4, 8, 16, 32) if length < longest]
    sizes, size = few, _TILE
    while size < longest:
        sizes.append(size)
        size += max(_TILE, 1 << (size.bit_length() - 4))
    return [*sizes, longest]


def _row_counts(most: int) -> list[int]:
    """Return numbers of rows up to `most`, both ends of every stretch that libraries tell apart."""
    ends = {1, 2, 4, *_SMALL_TILES, *range(_TILE, most, _TILE)}
    return sorted({count for end in ends for count in (end, end + 1) if count < most} | {most})


@dataclass(frozen=True, slots=True)
class Extent:
    """How large steps may become.

    rows        that run at once
    chunk       tokens of a prefill step
    context     tokens of the longest sequence; the rows of a prefill step together have as many,
                or STEP_CONTEXT_TOKENS where that is more
    logit_rows  prompt positions whose logits a prefill step computes
    meeting     ranks that have rows of their own, all of which pass the experts of each
    """

    rows: int
    chunk: int
    context: int
    logit_rows: int
    vocab: int
    meeting: int = 1

    @property
    def step_context(self) -> int:
        """Tokens before and in the chunks of a prefill step of several rows."""
        return max(self.context, STEP_CONTEXT_TOKENS)

    def pools(self, tree: TreeSpec) -> PoolSizes:
        """Return the smallest pools on which the steps can run: a page, two windows, a state."""
        windows = 2 * tree.window_pages
        states = self.rows if tree.has_state else 0
        return PoolSizes(full_pages=self.rows, swa_pages=self.rows * windows, states=states)

    def steps(self, tree: TreeSpec) -> list[StepPlan]:
        """Return the steps: one long row, as many rows as there may be, decode of all of them."""
        shared = min(self.rows, self.chunk, self.context)
        return [
            self._prefill(1, tree),
            self._prefill(shared, tree),
            self.decode(tree),
        ]

    def warm_ups(self, tree: TreeSpec) -> list[StepPlan]:
        """Return prefill steps of many sizes, one row each.

        Libraries compile a kernel for each kind of size when they first meet it, which takes
        seconds: the first requests should not wait for that.
        """
        longest = min(self.chunk, self.context)
        return [self._plan(0, length, rows=1, tree=tree) for length in _lengths(longest)]

    def row_warm_ups(self, tree: TreeSpec) -> list[StepPlan]:
        """Return steps of fewer rows, a token each: some prefilled, each tile of them decoded."""
        few = (rows for rows in _FEW_ROWS if rows <= self.rows)
        tiles = range(_ROW_TILE, self.rows, _ROW_TILE)
        return [
            *(replace(self, chunk=rows)._prefill(rows, tree) for rows in few),
            *(replace(self, rows=rows).decode(tree) for rows in (1, *tiles)),
        ]

    def product_rows(self) -> list[int]:
        """Return all kinds of numbers of rows that layers may multiply at once."""
        return _row_counts(self.meeting * max(self.chunk, self.rows))

    def head_rows(self) -> list[int]:
        """Return all kinds of numbers of rows whose logits a step may compute."""
        return _row_counts(self.rows + min(self.logit_rows, self.chunk))

    def decode(self, tree: TreeSpec) -> StepPlan:
        """Return a decode step of all rows, each at the end of the longest context."""
        return self._plan(self.context - 1, 1, rows=self.rows, tree=tree, saves=False)

    def _prefill(self, rows: int, tree: TreeSpec) -> StepPlan:
        """Return a prefill step of `rows` rows that share out the chunk and the context."""
        context = min(self.context, self.step_context // rows)
        length = min(max(1, self.chunk // rows), context)
        spans = [*self._spans(rows, context - length, length)]
        return self._plan(context - length, length, rows=rows, tree=tree, spans=spans)

    def _spans(self, rows: int, start: int, length: int) -> Iterator[PromptSpan]:
        """Yield spans of rows from `start` on: all logits of prompts that a step may have."""
        left = self.logit_rows
        for row in range(rows):
            count = min(left, length)
            if count == 0:
                return
            targets = packed(np.zeros(count), INT32)
            yield PromptSpan(row, start, targets, _TOP_LOGPROBS)
            left -= count

    def _plan(
        self,
        start: int,
        length: int,
        *,
        rows: int,
        tree: TreeSpec,
        spans: Sequence[PromptSpan] = (),
        saves: bool = True,
    ) -> StepPlan:
        """Return a step of rows of `length` tokens from `start` on, all of them sampled.

        saves  besides, each row leaves a window and its own state behind its last token
        """
        line, count = np.arange(rows), np.full(rows, length)
        tokens = np.arange(rows * length, dtype=np.int64)
        return StepPlan(
            VERSION,
            step=0,
            changes=self._tables(rows, div_ceil(start + length, tree.page_size), tree),
            joins=[Join(i, self._sampling()) for i in range(rows)],
            copies=_copies(tree),
            rows=Rows(
                line=packed(line, INT32),
                start=packed(np.full(rows, start), INT64),
                count=packed(count, INT32),
                ids=packed((tokens * 7919 + 11) % self.vocab, INT32),
            ),
            saves=_saves(rows, start + length, tree) if saves else Saves(),
            sampled=packed(np.stack((line, line), axis=1), INT32),
            spans=[*spans],
            sampling=Sample(0, [Mask(i, self._mask()) for i in range(rows)]),
        )

    def _tables(self, rows: int, pages: int, tree: TreeSpec) -> TableChanges:
        """Return tables in which each row has one page, a window and a state of its own."""
        line, width = np.arange(rows), tree.window_pages
        unit = line + 1
        window = np.arange(1, 1 + rows * width)
        return TableChanges(
            pages=_triples(np.repeat(line, pages), np.tile(np.arange(pages), rows), unit, pages),
            windows=_triples(np.repeat(line, width), np.tile(np.arange(width), rows), window, 1),
            states=packed(np.stack((line, unit), axis=1), INT32) if tree.has_state else b"",
        )

    def _mask(self) -> bytes:
        return packed(np.full(div_ceil(self.vocab, WORD_BITS), _EVEN_WORD), INT32)

    def _sampling(self) -> LineSampling:
        """Return a row that wants everything."""
        return LineSampling(
            seed=0,
            prompt_tokens=self.context,
            temperature=1.0,
            top_p=0.9,
            repetition_penalty=1.1,
            min_new_tokens=1,
            prompt=packed([0], INT32),
            bias_ids=packed([0], INT32),
            bias_values=packed([1.0], FLOAT32),
            stop_ids=packed([0], INT32),
            constrained=True,
            top_logprobs=_TOP_LOGPROBS,
        )


def _triples(line: np.ndarray, index: np.ndarray, unit: np.ndarray, repeats: int) -> bytes:
    return packed(np.stack((line, index, np.repeat(unit, repeats)), axis=1), INT32)


def _copies(tree: TreeSpec) -> Copies:
    return Copies(
        _TO_DUMMY,
        _TO_DUMMY if tree.window else b"",
        _STATE_TO_DUMMY if tree.has_state else b"",
    )


def _saves(rows: int, position: int, tree: TreeSpec) -> Saves:
    """Return a snapshot of each row, into a window that is nobody's and its own state."""
    line, width = np.arange(rows), tree.window_pages
    window = np.arange(1, 1 + rows * width) + rows * width
    return Saves(
        row=packed(line, INT32),
        position=packed(np.full(rows, position), INT64),
        state=packed(line + 1 if tree.has_state else 0 * line, INT32),
        window=packed(window, INT32),
    )
