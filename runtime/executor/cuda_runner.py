"""Runs step plans on a CUDA device: decode as graphs, prefill launch by launch.

What a small prefill step does between attentions may be graphs, too, but that is the network's
business. One that has only last tokens of prompts to compute decodes them (`last_tokens`).

To launch a step, and to have it sampled, the host does not wait for the device. The tokens stay
there for the step after it, and the host hears of them when it asks for the result.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.likeliest import likeliest
from jit_kernels.vendor_calls import VendorCalls
from layers.forward_batch import FedTokens, ForwardBatch, Forwarded
from layers.fused.decode_step import DecodeRows
from mem_cache.pools import KvPools
from runtime.executor.batch_builder import build_batch
from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.decode_graphs import Capture, DecodeGraphs
from runtime.executor.last_tokens import as_decode, run_saves
from runtime.executor.model_runner import ForwardedStep, run_copies, sample_held
from runtime.executor.sampler import Sampler
from runtime.executor.step_plan import HeldRow, Phase, StepPlan, StepResult

__all__ = ["CudaModelRunner", "CudaStep", "FusedNetwork"]


class FusedNetwork(Protocol):
    """What `layers.fused.network.FusedV4` is to a runner."""

    def prefill(
        self,
        batch: ForwardBatch,
        pools: KvPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> Forwarded:
        """Run a step of chunks that lies in host memory; see `Forwarded`.

        fed      tokens that only the device has
        halfway  called when half of it is launched
        """
        ...

    def decode(self, rows: DecodeRows, pools: KvPools) -> Tensor:
        """Run a step of one token a row; return their logits, [B, V] float32."""
        ...

    def capture_prefill(self, sizes: Sequence[int], capture: Capture) -> None:
        """Have prefill steps of up to max(sizes) tokens replay graphs; none where empty."""
        ...

    def rehearse(self, rows: Iterable[int], *, head_rows: Iterable[int]) -> None:
        """Have kernels compiled for so many rows in the layers, and in the output head."""
        ...

    def vendor_calls(
        self,
        rows: Sequence[int],
        *,
        head_rows: Iterable[int],
        decoded: Iterable[int],
        columns: int,
    ) -> list[VendorCalls]:
        """Return what steps of so many rows call vendors' libraries for."""
        ...


class CudaStep(ForwardedStep):
    """A step in flight on the device; its result is waited for."""

    def __init__(
        self,
        plan: StepPlan,
        logits: Tensor,
        sampler: Sampler,
        *,
        keep: Callable[[Tensor], None],
        likely: Tensor | None = None,
        half: torch.cuda.Event | None = None,
    ) -> None:
        """Note where in the device's work the logits are there.

        keep  takes the tokens that are sampled, [s] int64 on the device, for the step after it
        half  recorded in the middle of the step; None: the next step is planned at once
        """
        super().__init__(plan, logits, sampler, likely=likely)
        self._half = half
        self._keep = keep
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

    @torch.inference_mode()
    def sample(self) -> dict[int, HeldRow]:
        """Have the rows sampled, and their tokens kept for the step after this one."""
        held = super().sample()
        assert self._sampled is not None
        self._keep(self._sampled.tokens)
        return held


class CudaModelRunner:
    """A network over fused ops, its pools, its sampler, and the buffers of its decode steps."""

    def __init__(
        self, network: FusedNetwork, pools: KvPools, sampler: Sampler, buffers: DecodeBuffers
    ) -> None:
        self._network = network
        self._pools = pools
        self._sampler = sampler
        self._buffers = buffers
        self._graphs: DecodeGraphs | None = None
        self._unsampled = False

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
        """Launch the plan's copies and its forward pass.

        Raises ValueError over the logits of a step that was not sampled, and for a row that is fed
        with more than a token, or by a row that the step before did not sample.
        """
        if self._unsampled:
            raise ValueError("the step before was not sampled")
        run_copies(plan, self._pools)
        decode = plan if plan.phase is Phase.DECODE else as_decode(plan)
        if decode is None:
            step = self._launch_prefill(plan)
        else:
            step = self._launch_decode(decode)
            if decode is not plan:
                run_saves(plan, decode, self._pools)
        self._unsampled = True
        return step

    def run(self, plan: StepPlan) -> StepResult:
        """Launch a step, have it sampled, and wait for it."""
        step = self.launch(plan)
        step.sample()
        return step.result()

    def sample(self, rows: list[HeldRow]) -> StepResult:
        """Sample rows that steps have held, and whose masks are known now."""
        return sample_held(rows, self._sampler)

    def _launch_prefill(self, plan: StepPlan) -> CudaStep:
        half = torch.cuda.Event() if self._buffers.on_cuda else None
        logits = self._network.prefill(
            build_batch(plan),
            self._pools,
            fed=self._buffers.fed_tokens(plan),
            halfway=None if half is None else half.record,
        ).logits
        return CudaStep(plan, logits, self._sampler, keep=self._keep, half=half)

    def _launch_decode(self, plan: StepPlan) -> CudaStep:
        count = len(plan.input_ids)
        self._buffers.fill(plan)
        size = None if self._graphs is None else self._graphs.size_for(count)
        if self._graphs is None or size is None:
            logits = self._decode(count)
        else:
            logits = self._graphs.replay(size)[:count]
        likely = self._buffers.likely[:count]
        return CudaStep(plan, logits, self._sampler, keep=self._keep, likely=likely)

    def _keep(self, tokens: Tensor) -> None:
        self._unsampled = False
        self._buffers.keep_sampled(tokens)

    def _decode(self, count: int) -> Tensor:
        """Launch a step of the first `count` rows of the buffers, and find its likeliest tokens."""
        logits = self._network.decode(self._buffers.first(count), self._pools)
        likeliest(logits, out=self._buffers.likely[:count])
        return logits
