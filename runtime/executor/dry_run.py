"""The largest steps that there can be, to see before serving what memory they take.

Their rows want of sampling whatever takes memory. Nothing they compute means anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from jit_kernels.mask_logits import WORD_BITS
from mem_cache.spec import PoolSizes, PoolSpec, div_ceil
from runtime.executor.step_plan import Phase, PromptLogprobSpan, SampleState, StepPlan
from runtime.messages import Logprobs, Sampling

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
# A copy over the unit that nobody reads, for the kernels that make it.
_TO_DUMMY = (1, 0)
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


class _Even:
    """A grammar that allows every other token."""

    def __init__(self, vocab: int) -> None:
        words = div_ceil(vocab, WORD_BITS)
        self.allowed: np.ndarray | None = np.full(words, 0x55555555, np.int32)


@dataclass(frozen=True, slots=True)
class Extent:
    """How large steps may become.

    rows        that run at once
    chunk       tokens of a prefill step
    context     tokens of the longest sequence; the rows of a prefill step together have as many,
                or STEP_CONTEXT_TOKENS where that is more
    logit_rows  prompt positions whose logits a prefill step computes
    """

    rows: int
    chunk: int
    context: int
    logit_rows: int
    vocab: int

    @property
    def step_context(self) -> int:
        """Tokens before and in the chunks of a prefill step of several rows."""
        return max(self.context, STEP_CONTEXT_TOKENS)

    def pools(self, spec: PoolSpec) -> PoolSizes:
        """Return the smallest pools on which the steps can run: a page, two windows, a ring."""
        windows = 2 * spec.tree.window_pages
        return PoolSizes(full_pages=self.rows, swa_pages=self.rows * windows, rings=self.rows)

    def steps(self, spec: PoolSpec) -> list[StepPlan]:
        """Return the steps: one long row, as many rows as there may be, decode of all of them."""
        shared = min(self.rows, self.chunk, self.context)
        return [
            self._prefill(1, spec),
            self._prefill(shared, spec),
            self.decode(spec),
        ]

    def warm_ups(self, spec: PoolSpec) -> list[StepPlan]:
        """Return prefill steps of many sizes, one row each.

        Libraries compile a kernel for each kind of size when they first meet it, which takes
        seconds: the first requests should not wait for that.
        """
        longest = min(self.chunk, self.context)
        zero = np.zeros(1, dtype=np.int64)
        return [
            self._plan(
                Phase.PREFILL,
                zero,
                np.full(1, length, dtype=np.int64),
                spec=spec,
                samples=[self._sample()],
            )
            for length in _lengths(longest)
        ]

    def row_warm_ups(self, spec: PoolSpec) -> list[StepPlan]:
        """Return steps of fewer rows, a token each: some prefilled, each tile of them decoded."""
        few = (rows for rows in _FEW_ROWS if rows <= self.rows)
        tiles = range(_ROW_TILE, self.rows, _ROW_TILE)
        return [
            *(replace(self, chunk=rows)._prefill(rows, spec) for rows in few),
            *(replace(self, rows=rows).decode(spec) for rows in (1, *tiles)),
        ]

    def product_rows(self) -> list[int]:
        """Return all kinds of numbers of rows that layers may multiply at once."""
        return _row_counts(max(self.chunk, self.rows))

    def head_rows(self) -> list[int]:
        """Return all kinds of numbers of rows whose logits a step may compute."""
        return _row_counts(self.rows + min(self.logit_rows, self.chunk))

    def decode(self, spec: PoolSpec) -> StepPlan:
        """Return a decode step of all rows, each at the end of the longest context."""
        start = np.full(self.rows, self.context - 1, dtype=np.int64)
        samples = [self._sample() for _ in range(self.rows)]
        return self._plan(Phase.DECODE, start, np.ones_like(start), spec=spec, samples=samples)

    def _prefill(self, rows: int, spec: PoolSpec) -> StepPlan:
        """Return a prefill step of `rows` rows that share out the chunk and the context."""
        context = min(self.context, self.step_context // rows)
        length = min(max(1, self.chunk // rows), context)
        lengths = np.full(rows, length, dtype=np.int64)
        samples = [self._sample() for _ in range(rows)]
        plan = self._plan(Phase.PREFILL, context - lengths, lengths, spec=spec, samples=samples)
        plan.prompt_logprobs = [*self._spans(rows, context - length, length)]
        return plan

    def _spans(self, rows: int, start: int, length: int) -> Iterator[PromptLogprobSpan]:
        """Yield spans of rows from `start` on: all logits of prompts that a step may have."""
        left = self.logit_rows
        for row in range(rows):
            count = min(left, length)
            if count == 0:
                return
            targets = np.zeros(count, dtype=np.int32)
            yield PromptLogprobSpan(row, start, start + count, targets, _TOP_LOGPROBS, ())
            left -= count

    def _plan(
        self,
        phase: Phase,
        start: np.ndarray,
        length: np.ndarray,
        *,
        spec: PoolSpec,
        samples: list[SampleState],
    ) -> StepPlan:
        rows, tree = len(start), spec.tree
        each = np.arange(rows, dtype=np.int64)
        unit = (each + 1).astype(np.int32)
        window = np.arange(1, 1 + rows * tree.window_pages, dtype=np.int32)
        window = window.reshape(rows, tree.window_pages)
        saved = window if phase is Phase.DECODE else window + rows * tree.window_pages
        pages = div_ceil(int((start + length).max()), tree.page_size)
        tokens = np.arange(int(length.sum()), dtype=np.int64)
        zero = np.zeros(rows, dtype=np.int64)
        return StepPlan(
            phase=phase,
            input_ids=(tokens * 7919 + 11) % self.vocab,
            chunk_start=start,
            chunk_len=length,
            page_table=np.repeat(unit[:, None], pages, axis=1),
            window=window,
            ring=unit,
            window_from=zero,
            write_from=zero,
            save_row=each,
            save_position=start + length,
            save_ring=unit,
            save_window=saved,
            page_copies=[_TO_DUMMY],
            swa_copies=[_TO_DUMMY],
            ring_copies=[_TO_DUMMY],
            sampled=each,
            samples=samples,
            positions=start + length,
            prompt_logprobs=[],
        )

    def _sample(self) -> SampleState:
        """Return a row that wants everything."""
        sampling = Sampling(
            max_new_tokens=2,
            seed=0,
            temperature=1.0,
            top_p=0.9,
            logit_bias={0: 1.0},
            repetition_penalty=1.1,
            min_new_tokens=1,
        )
        return SampleState(
            sampling,
            Logprobs(0, _TOP_LOGPROBS),
            prompt=np.zeros(1, dtype=np.int32),
            stop_ids=(0,),
            constraint=_Even(self.vocab),
        )
