"""The reference network on the CPU as a device runs it: steps are fed with what was drawn."""

from dataclasses import replace

import numpy as np
import torch

from runtime.executor.model_runner import CpuModelRunner, ForwardedStep
from runtime.executor.step_plan import HeldRow, StepPlan


class DrawnStep(ForwardedStep):
    """A step whose tokens feed the next one."""

    def sample(self) -> dict[int, HeldRow]:
        """Sample, and keep the tokens."""
        held = super().sample()
        assert self._sampled is not None
        self.tokens = self._sampled.tokens
        return held


class AheadRunner(CpuModelRunner):
    """Feeds the next step with what the last one drew."""

    _last: DrawnStep | None = None

    def launch(self, plan: StepPlan) -> DrawnStep:
        """Run the step on the tokens it is fed with."""
        ids = plan.input_ids
        if plan.feed is not None:
            assert self._last is not None
            fed, ids = plan.feed >= 0, ids.copy()
            drawn = self._last.tokens[torch.from_numpy(plan.feed[fed])]
            ids[np.cumsum(plan.chunk_len)[fed] - 1] = drawn.numpy()
        step = super().launch(replace(plan, input_ids=ids, feed=None))
        self._last = DrawnStep(plan, step._logits, self._sampler)
        return self._last
