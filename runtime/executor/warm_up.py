"""What is run before serving so that no request waits for a kernel to be compiled.

Products of all kinds of sizes, then whole steps, then captures of graphs. What vendors' libraries
compile for all of that is known beforehand, and may be compiled while weights are loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jit_kernels.vendor_calls import VendorCalls
from mem_cache.spec import PoolSpec, div_ceil
from runtime.executor.batch_builder import logit_tokens
from runtime.executor.cuda_runner import CudaModelRunner, FusedNetwork
from runtime.executor.dry_run import Extent
from runtime.executor.plan_rows import PlanRows
from runtime.executor.single_token_steps import is_single_token_step
from runtime.wire.step import StepPlan

__all__ = ["WarmUp"]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The sizes that a server meets before it serves.

    graphs  rows of the decode steps that are captured
    pieces  tokens of the prefill steps of which parts are captured
    """

    extent: Extent
    spec: PoolSpec
    graphs: Sequence[int]
    pieces: Sequence[int]

    def plans(self) -> list[StepPlan]:
        """Return the steps, the largest first."""
        extent, spec = self.extent, self.spec
        return [*extent.steps(spec), *extent.warm_ups(spec), *extent.row_warm_ups(spec)]

    def run(self, network: FusedNetwork, runner: CudaModelRunner) -> None:
        """Run products and steps; captures are their owners' business."""
        network.rehearse(self.extent.product_rows(), head_rows=self.extent.head_rows())
        for plan in self.plans():
            runner.run(plan)

    def vendor_calls(self, network: FusedNetwork) -> list[VendorCalls]:
        """Return what `run` and the captures call vendors' libraries for."""
        steps = [(plan, PlanRows.of(plan.rows)) for plan in self.plans()]
        decodes = [is_single_token_step(plan, rows) for plan, rows in steps]
        tokens = [len(rows.ids) for _, rows in steps]
        decoded = {n for n, is_decode in zip(tokens, decodes, strict=True) if is_decode}
        decoded.update(self.graphs)
        prefilled = {n for n, is_decode in zip(tokens, decodes, strict=True) if not is_decode}
        logits = {len(logit_tokens(plan, rows)) for plan, rows in steps}
        pages = div_ceil(self.extent.context, self.spec.tree.page_size)
        return network.vendor_calls(
            sorted({*self.extent.product_rows(), *prefilled, *decoded, *self.pieces}),
            head_rows=sorted({*self.extent.head_rows(), *logits, *decoded}),
            decoded=sorted(decoded),
            columns=pages * (self.spec.tree.page_size // 4),
        )
