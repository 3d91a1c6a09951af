"""Weights, pools and sampler of one device: runs step plans in the order given."""

import numpy as np
import torch

from layers.deepseek_v4 import DeepseekV4
from mem_cache.pools import KvPools
from runtime.executor.batch_builder import build_batch
from runtime.executor.logprobs import top_logprobs
from runtime.executor.sampler import SampledAhead, Sampler
from runtime.executor.step_plan import HeldRow, StepPlan, StepResult
from runtime.messages import TokenLogprobs


def run_copies(plan: StepPlan, pools: KvPools) -> None:
    """Copy what the plan wants copied before its forward pass, in its order."""
    pools.copy_full_pages(plan.page_copies)
    pools.copy_swa_pages(plan.swa_copies)
    pools.copy_rings(plan.ring_copies)


@torch.inference_mode()
def sample_held(rows: list[HeldRow], sampler: Sampler) -> StepResult:
    """Sample rows that steps have held, and whose masks are known now."""
    positions = np.array([row.position for row in rows], dtype=np.int64)
    logits = torch.stack([row.logits for row in rows])
    told = sampler.sample(logits, [row.sample for row in rows], positions)
    return StepResult(told.token_ids, told.failed, told.logprobs, [])


class CpuModelRunner:
    """Runs a step's forward pass inside `launch`, and its sampling inside `sample`.

    No step is in flight when the next one is launched, so that none can be fed from one.
    """

    def __init__(self, model: DeepseekV4, pools: KvPools, sampler: Sampler) -> None:
        self._model = model
        self._pools = pools
        self._sampler = sampler

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> "ForwardedStep":
        """Run the plan's copies and its forward pass. Raises ValueError for one that is fed."""
        if plan.feed is not None:
            raise ValueError("on the CPU no step is fed by the one before it")
        run_copies(plan, self._pools)
        logits = self._model.forward(build_batch(plan), self._pools).logits
        return ForwardedStep(plan, logits, self._sampler)

    def sample(self, rows: list[HeldRow]) -> StepResult:
        """Sample rows that steps have held, and whose masks are known now."""
        return sample_held(rows, self._sampler)


class ForwardedStep:
    """A step whose logits are there, or will be before anything that is launched after them.

    logits  [sampled rows, then prompt positions, V] float32
    likely  [sampled rows] int64 their likeliest tokens, if the step looked for them
    """

    def __init__(
        self,
        plan: StepPlan,
        logits: torch.Tensor,
        sampler: Sampler,
        *,
        likely: torch.Tensor | None = None,
    ) -> None:
        self._plan = plan
        self._logits = logits
        self._sampler = sampler
        self._likely = likely
        self._sampled: SampledAhead | None = None

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        return True

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step."""
        return True

    @torch.inference_mode()
    def sample(self) -> dict[int, HeldRow]:
        """Sample the rows; a held one is sampled without its mask, which serves nobody."""
        plan = self._plan
        logits = self._logits[: len(plan.samples)]
        self._sampled = self._sampler.sample_ahead(
            logits, plan.samples, plan.positions, likely=self._likely
        )
        # Copies of single rows, which keep no other row's logits.
        return {
            k: HeldRow(logits[k].clone(), sample, int(plan.positions[k]))
            for k, sample in enumerate(plan.samples)
            if not sample.is_ready
        }

    @torch.inference_mode()
    def result(self) -> StepResult:
        """Wait for the tokens, and for log-probabilities of prompts where they are wanted.

        Raises ValueError for a step that was not sampled.
        """
        if self._sampled is None:
            raise ValueError("the result of a step that was not sampled")
        told = self._sampled.settle()
        return StepResult(told.token_ids, told.failed, told.logprobs, self._prompt_logprobs())

    def _prompt_logprobs(self) -> list[TokenLogprobs]:
        parts: list[TokenLogprobs] = []
        first = len(self._plan.samples)
        for span in self._plan.prompt_logprobs:
            last = first + span.stop - span.start
            logits = self._logits[first:last]
            parts.append(top_logprobs(logits, span.targets, span.top, span.token_ids))
            first = last
        return parts
