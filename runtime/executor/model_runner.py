"""Weights, pools and sampler of the CPU: runs step plans in the order given."""

import numpy as np
import torch
from torch import Tensor

from layers.models.deepseek_v4.reference_network import DeepseekV4
from mem_cache.pools import KvPools
from runtime.executor.batch_builder import build_batch
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.lines import Lines
from runtime.executor.plan_rows import PlanRows
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Copies, KeptResult, SampleKept, StepPlan

__all__ = ["CpuModelRunner", "run_copies"]


def run_copies(copies: Copies, pools: KvPools) -> None:
    """Copy what a plan wants copied before its forward pass, in its order."""
    for data, copy in (
        (copies.pages, pools.copy_full_pages),
        (copies.windows, pools.copy_swa_pages),
        (copies.rings, pools.copy_rings),
    ):
        if data:
            copy([(int(a), int(b)) for a, b in unpacked(data, INT32, -1, 2).tolist()])


class CpuModelRunner:
    """Runs a step's forward pass inside `launch`, and its sampling inside `sample`."""

    def __init__(self, model: DeepseekV4, pools: KvPools, lines: Lines) -> None:
        self._model = model
        self._pools = pools
        self._lines = lines

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Run the plan's copies and its forward pass, and sample it where the plan says how."""
        rows = self._lines.begin(plan)
        run_copies(plan.copies, self._pools)
        page_size = self._pools.spec.tree.page_size
        batch = build_batch(plan, rows, self._lines.tables, page_size=page_size)
        feed(batch.input_ids, rows, self._lines.last)
        forwarded = self._model.forward(batch, self._pools)
        step = LaunchedStep(plan, rows, self._lines, forwarded.logits, finite=forwarded.finite)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._lines.sample_kept(command)


def feed(input_ids: Tensor, rows: PlanRows, last: Tensor) -> None:
    """Put the tokens that lines were given last where rows begin with them, in place.

    input_ids  [T] int64
    last       [lines] int64, beside `input_ids`
    """
    fed = rows.fed
    if len(fed):
        first = torch.from_numpy((np.cumsum(rows.count) - rows.count)[fed])
        input_ids[first] = last[torch.from_numpy(rows.line[fed].astype(np.int64))]
