"""Weights, pools and sampler of the CPU: runs step plans in the order given."""

import torch

from layers.models.contract import Network, Pools
from runtime.executor.batch_builder import build_batch, fed_tokens
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.lines import Lines
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Copies, KeptResult, SampleKept, StepPlan

__all__ = ["CpuModelRunner", "run_copies"]


def run_copies(copies: Copies, pools: Pools) -> None:
    """Copy what a plan wants copied before its forward pass, in its order."""
    for data, copy in (
        (copies.pages, pools.copy_full_pages),
        (copies.windows, pools.copy_swa_pages),
    ):
        if data:
            copy([(int(a), int(b)) for a, b in unpacked(data, INT32, -1, 2).tolist()])
    if copies.states:
        states = unpacked(copies.states, INT32, -1, 3).tolist()
        pools.copy_states([(int(a), int(b), int(position)) for a, b, position in states])


class CpuModelRunner:
    """Runs a step's forward pass inside `launch`, and its sampling inside `sample`."""

    def __init__(self, network: Network, pools: Pools, lines: Lines) -> None:
        self._network = network
        self._pools = pools
        self._page_size = network.cache.tree.page_size
        self._lines = lines

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Run the plan's copies and its forward pass, and sample it where the plan says how."""
        rows = self._lines.begin(plan)
        run_copies(plan.copies, self._pools)
        batch = build_batch(plan, rows, self._lines.tables, page_size=self._page_size)
        fed = fed_tokens(rows, self._lines.last)
        forwarded = self._network.prefill(batch, self._pools, fed=fed)
        step = LaunchedStep(plan, rows, self._lines, forwarded.logits, finite=forwarded.finite)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._lines.sample_kept(command)
