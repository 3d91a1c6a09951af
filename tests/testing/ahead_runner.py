"""The reference network on the CPU as a device runs it: sampled in `launch`, fed from there."""

from dataclasses import replace

import numpy as np

from runtime.executor.model_runner import CpuModelRunner, ForwardedStep
from runtime.executor.step_plan import StepPlan, StepResult


class DrawnStep(ForwardedStep):
    """A step that was sampled when it was launched."""

    drawn: StepResult

    def result(self) -> StepResult:
        """Return what was drawn."""
        return self.drawn


class AheadRunner(CpuModelRunner):
    """Samples ahead where the plan says so, and feeds the next step with what it drew."""

    _drawn: StepResult | None = None

    def launch(self, plan: StepPlan) -> ForwardedStep:
        """Run the step on the tokens it is fed with."""
        ids = plan.input_ids
        if plan.feed is not None:
            assert self._drawn is not None
            fed, ids = plan.feed >= 0, ids.copy()
            drawn = np.array(self._drawn.token_ids)[plan.feed[fed]]
            ids[np.cumsum(plan.chunk_len)[fed] - 1] = drawn
        self._drawn = None
        step = super().launch(replace(plan, input_ids=ids, feed=None, sample_ahead=False))
        if not plan.sample_ahead:
            return step
        done = DrawnStep(plan, step._logits, self._sampler)
        done.drawn = self._drawn = step.result()
        return done
