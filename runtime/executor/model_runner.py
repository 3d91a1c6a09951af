"""Weights, pools and sampler of one device: runs step plans in the order given."""

import torch

from layers.deepseek_v4 import DeepseekV4
from mem_cache.pools import KvPools
from runtime.executor.batch_builder import build_batch
from runtime.executor.logprobs import top_logprobs
from runtime.executor.sampler import Sampler
from runtime.executor.step_plan import StepPlan, StepResult
from runtime.messages import TokenLogprobs


class FinishedStep:
    """A step that ran to its end inside `launch`."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """Return what the step produced."""
        return self._result


class CpuModelRunner:
    """Runs every step at once, inside `launch`."""

    def __init__(self, model: DeepseekV4, pools: KvPools, sampler: Sampler) -> None:
        self._model = model
        self._pools = pools
        self._sampler = sampler
        self._device = torch.device("cpu")

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> FinishedStep:
        """Run the plan's copies, its forward pass and its sampling."""
        for source, destination in plan.page_copies:
            self._pools.copy_full_page(source, destination)
        for source, destination in plan.swa_copies:
            self._pools.copy_swa_page(source, destination)
        for source, destination in plan.ring_copies:
            self._pools.copy_ring(source, destination)
        logits = self._model.forward(build_batch(plan, self._device), self._pools)
        return FinishedStep(self._sample(plan, logits))

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> StepResult:
        count = len(plan.samples)
        if count:
            sampled = self._sampler.sample(logits[:count], plan.samples, plan.positions)
            result = StepResult(sampled.token_ids, sampled.failed, sampled.logprobs, [])
        else:
            result = StepResult([], [], [], [])
        result.prompt_logprobs = self._prompt_logprobs(plan, logits[count:])
        return result

    def _prompt_logprobs(self, plan: StepPlan, logits: torch.Tensor) -> list[TokenLogprobs]:
        parts: list[TokenLogprobs] = []
        first = 0
        for span in plan.prompt_logprobs:
            last = first + span.stop - span.start
            parts.append(top_logprobs(logits[first:last], span.targets, span.top, span.token_ids))
            first = last
        return parts
