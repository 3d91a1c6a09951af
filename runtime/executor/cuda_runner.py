"""Runs step plans on a CUDA device: decode as graphs, prefill launch by launch.

What a small prefill step does between attentions may be graphs, too, but that is the network's
business. One whose rows are a token each is decoded, too (`single_token_steps`).

To launch a step, and to have it sampled, the host does not wait for the device. The tokens stay
there for the step after it, and the host hears of them when it asks for the result.
"""

import torch
from torch import Tensor

from jit_kernels.likeliest import likeliest
from layers.models.contract import CudaNetwork, Pools
from layers.parallel.ranks import OneRank, Ranks
from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.decode_graphs import Capture, DecodeGraphs
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.lines import Lines
from runtime.executor.model_runner import run_chunks, run_copies, run_exchange, run_idle
from runtime.executor.plan_rows import PlanRows
from runtime.executor.record_watch import Unwatched, Watch
from runtime.executor.single_token_steps import is_single_token_step, run_saves
from runtime.wire.step import (
    Exchange,
    KeptResult,
    Rows,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
)

__all__ = ["CudaModelRunner", "CudaStep"]

_NO_ROWS = PlanRows.of(Rows(b"", b"", b"", b""))


class CudaStep(LaunchedStep):
    """A step in flight on the device; its result is waited for."""

    def __init__(
        self,
        plan: StepPlan,
        rows: PlanRows,
        lines: Lines,
        logits: Tensor,
        *,
        finite: Tensor | None = None,
        likely: Tensor | None = None,
        half: torch.cuda.Event | None = None,
    ) -> None:
        """Note where in the device's work the logits are there.

        half  recorded in the middle of the step; None: the next step is planned at once
        """
        super().__init__(plan, rows, lines, logits, finite=finite, likely=likely)
        self._half = half
        self._event = torch.cuda.Event() if logits.is_cuda else None
        if self._event is not None:
            self._event.record()

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        return self._event is None or self._event.query()

    @property
    def halfway(self) -> bool:
        """Whether half of the forward pass is over."""
        return self._half is None or self._half.query()

    @property
    def is_sampled(self) -> bool:
        """Whether the logits are read: the next step may overwrite them."""
        return self._drawn is not None


class CudaModelRunner:
    """A network on a CUDA device, its pools, its lines, and the buffers of its decode steps."""

    def __init__(
        self,
        network: CudaNetwork,
        pools: Pools,
        lines: Lines,
        buffers: DecodeBuffers,
        ranks: Ranks | None = None,
        *,
        watch: Watch | None = None,
    ) -> None:
        """Take the parts; `lines.last` is `buffers.last`.

        ranks  that share the network; None: there is one
        watch  verifies in each step what pools hold; None: nobody does
        """
        self._watch: Watch = watch or Unwatched()
        self._ranks = ranks or OneRank()
        self._network = network
        self._pools = pools
        self._page_size = network.cache.tree.page_size
        self._lines = lines
        self._buffers = buffers
        self._graphs: DecodeGraphs | None = None
        self._before: CudaStep | None = None

    @property
    def has_graphs(self) -> bool:
        """Whether decode steps are replayed."""
        return self._graphs is not None

    @torch.inference_mode()
    def capture(self, sizes: tuple[int, ...], capture: Capture) -> None:
        """Have decode steps of up to max(sizes) rows replayed from now on; none where empty."""
        self._graphs = DecodeGraphs(self._decode, sizes, capture=capture) if sizes else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CudaStep:
        """Launch the plan's copies and its forward pass, and sample it where the plan says how.

        Raises ValueError over the logits of a step that was not sampled.
        """
        return self._launch(plan, None)

    @torch.inference_mode()
    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> CudaStep | None:
        """Launch this rank's part of a step; see `RankExecutor`.

        Decode steps have the size that the rank with the most rows needs, on all ranks.
        """
        self._check_sampled()
        if exchange is not None:
            run_exchange(exchange, self._pools, self._ranks, self._watch)
        if tokens.nothing:
            return None
        if plan is not None:
            return self._launch(plan, tokens)
        if tokens.decodes:
            self._buffers.fill(_NO_ROWS, self._lines.tables, page_size=self._page_size)
            self._run_decode(max(tokens.counts))
        else:
            run_idle(self._network, self._pools, tokens.counts)
        return None

    def _launch(self, plan: StepPlan, tokens: JointTokens | None) -> CudaStep:
        self._check_sampled()
        lines, pools, watch = self._lines, self._pools, self._watch
        rows = lines.begin(plan)
        watch.copied(plan.copies, lambda: run_copies(plan.copies, pools))
        watch.reads(rows, lines.tables)
        if is_single_token_step(plan, rows) if tokens is None else tokens.decodes:
            step = self._launch_decode(plan, rows, tokens)
            run_saves(plan, rows, lines.tables, pools)
        else:
            step = self._launch_chunks(plan, rows, tokens)
        watch.wrote(plan, rows, lines.tables)
        self._before = step
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def _check_sampled(self) -> None:
        if self._before is not None and not self._before.is_sampled:
            raise ValueError("the step before was not sampled")

    def run(self, plan: StepPlan) -> StepResult:
        """Launch a step, have it sampled, and wait for it."""
        step = self.launch(plan)
        if plan.sampling is None:
            step.sample(Sample(plan.step))
        return step.result()

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._lines.sample_kept(command)

    def _launch_chunks(
        self, plan: StepPlan, rows: PlanRows, tokens: JointTokens | None
    ) -> CudaStep:
        half = torch.cuda.Event() if self._buffers.on_cuda else None
        forwarded = run_chunks(
            self._network,
            self._pools,
            self._lines,
            plan,
            rows,
            counts=None if tokens is None else tokens.counts,
            halfway=None if half is None else half.record,
        )
        logits, finite = forwarded.logits, forwarded.finite
        return CudaStep(plan, rows, self._lines, logits, finite=finite, half=half)

    def _launch_decode(
        self, plan: StepPlan, rows: PlanRows, tokens: JointTokens | None
    ) -> CudaStep:
        count = len(rows.line)
        self._buffers.fill(rows, self._lines.tables, page_size=self._page_size)
        logits = self._run_decode(count if tokens is None else max(tokens.counts))[:count]
        likely = self._buffers.likely[:count]
        return CudaStep(plan, rows, self._lines, logits, likely=likely)

    def _run_decode(self, count: int) -> Tensor:
        """Launch a step of the first `count` rows of the buffers, as a graph where there is one."""
        size = None if self._graphs is None else self._graphs.size_for(count)
        if self._graphs is None or size is None:
            return self._decode(count)
        return self._graphs.replay(size)

    def _decode(self, count: int) -> Tensor:
        """Launch a step of the first `count` rows of the buffers, and find its likeliest tokens."""
        logits = self._network.decode(self._buffers.first(count), self._pools)
        likeliest(logits, out=self._buffers.likely[:count])
        return logits
