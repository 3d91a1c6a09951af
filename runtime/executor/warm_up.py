"""What is run before serving so that no request waits for a kernel to be compiled.

Products of all kinds of sizes, then whole steps, then captures of graphs. What vendors' libraries
compile for products may be compiled while weights are loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jit_kernels.vendor_products import run_products
from mem_cache.spec import TreeSpec
from runtime.executor.batch_builder import logit_tokens
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.dry_run import Extent
from runtime.executor.plan_rows import PlanRows
from runtime.wire.step import StepPlan

__all__ = ["WarmUp"]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The sizes that a server meets before it serves.

    graphs  rows of the decode steps that are captured
    pieces  tokens of the prefill steps of which parts are captured
    """

    extent: Extent
    tree: TreeSpec
    graphs: Sequence[int]
    pieces: Sequence[int]

    def plans(self) -> list[StepPlan]:
        """Return the steps, the largest first."""
        extent, tree = self.extent, self.tree
        return [*extent.steps(tree), *extent.warm_ups(tree), *extent.row_warm_ups(tree)]

    def product_rows(self) -> list[int]:
        """Return all numbers of rows that layers or the head may multiply at once, ascending."""
        extent = self.extent
        counts = {*extent.product_rows(), *extent.head_rows(), *self.graphs, *self.pieces}
        for plan in self.plans():
            rows = PlanRows.of(plan.rows)
            counts |= {len(rows.ids), len(logit_tokens(plan, rows))}
        return sorted(counts)

    def run(self, runner: CudaModelRunner, device: torch.device) -> None:
        """Run products and steps; captures are their owners' business."""
        run_products(self.product_rows(), device)
        for plan in self.plans():
            runner.run(plan)
