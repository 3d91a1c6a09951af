"""Scores choices with the engine: the prompt once, each choice's tokens once.

From the prompt's last logits come the first tokens of all choices. A choice of more tokens then
costs exactly those tokens: it starts at the resume point that the prompt left. Equal beginnings of
choices have one value, taken once, so that ties are ties.
"""

import numpy as np
import numpy.typing as npt

from runtime.errors import Aborted, RequestFailed
from runtime.messages import Logprobs
from runtime.sampling import SamplingSpec
from runtime.server.caller import caller
from runtime.server.native_plan import NO_PROMPT_LOGPROBS
from runtime.server.runs import Answer, gather
from runtime.server.score_plan import ScorePlan
from runtime.server.spelling import LEAST_LOGPROB
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.stream import Bundle

# Ids sent to the scheduler at a time: every choice brings the whole prompt along.
WAVE_TOKENS = 4 << 20

Ids = tuple[int, ...]


class ScoreRun:
    """The calls of one score, and what they cost.

    cached_tokens    of the prompt, from the cache
    computed_tokens  of prompt and choices (of choices by themselves as well), computed for this
    """

    def __init__(
        self,
        manager: TokenizerManager,
        bundle: Bundle,
        *,
        namespace: str,
        priority: int,
        boundaries: tuple[int, ...] = (),
    ) -> None:
        self._manager = manager
        self._bundle = bundle
        self._namespace = namespace
        self._priority = priority
        self._boundaries = boundaries
        self.cached_tokens = 0
        self.computed_tokens = 0

    async def conditional(self, plan: ScorePlan) -> dict[Ids, float]:
        """Return the log-probability of the last token of every beginning of every choice."""
        first = tuple(sorted({ids[0] for ids in plan.choices}))
        [answer] = await self._answers(
            [self._call(plan.prefix, Logprobs(NO_PROMPT_LOGPROBS, 0, first), new_tokens=1)]
        )
        self.cached_tokens = answer.cached_tokens
        picked = answer.logprobs.picked
        if not picked or len(picked[0]) != len(first):
            raise RequestFailed("the model gave no finite probabilities")
        values: dict[Ids, float] = {(token_id,): _finite(v) for v, token_id in picked[0]}
        found = await self._rest(plan.prefix, plan.choices)
        for ids, rest in found.items():
            for k, value in enumerate(rest, start=2):
                values.setdefault(ids[:k], value)
        return values

    async def unconditional(self, plan: ScorePlan) -> dict[Ids, list[float]]:
        """Return the log-probabilities of each choice by itself, without its first token."""
        return {ids: [] for ids in plan.choices} | await self._rest([], plan.choices)

    async def _rest(self, prefix: list[int], choices: list[Ids]) -> dict[Ids, list[float]]:
        """Return the values of each choice's tokens after the first, where it has more."""
        longer = sorted({ids for ids in choices if len(ids) > 1})
        asked = Logprobs(len(prefix))
        # One score alone never overflows the queue, nor memory, nor takes every row.
        most = max(1, self._manager.rows // 2)
        wave = min(most, max(1, WAVE_TOKENS // max(1, len(prefix))))
        found: dict[Ids, list[float]] = {}
        head = np.array(prefix, dtype=np.int64)
        for start in range(0, len(longer), wave):
            part = longer[start : start + wave]
            answers = await self._answers(
                [self._call(np.concatenate((head, np.array(ids))), asked) for ids in part]
            )
            for ids, answer in zip(part, answers, strict=True):
                found[ids] = _tail_values(answer, len(ids))
        return found

    def _call(
        self, ids: "list[int] | npt.NDArray[np.int64]", asked: Logprobs, *, new_tokens: int = 0
    ) -> GenerateCall:
        spec = SamplingSpec(max_new_tokens=new_tokens, temperature=0.0)
        return GenerateCall(
            spec,
            input_ids=ids,
            logprobs=asked,
            namespace=self._namespace,
            priority=self._priority,
            share=caller().share,
            timeout_s=caller().timeout_s,
            stream=False,
            boundaries=tuple(at for at in self._boundaries if at < len(ids)),
        )

    async def _answers(self, calls: list[GenerateCall]) -> list[Answer]:
        found = await gather(self._manager, calls, bundle=self._bundle)
        answers = [choices[0] for choices in found]
        for answer in answers:
            if answer.finish is not None and answer.finish.type == "abort":
                raise Aborted(answer.finish.message or "the request was aborted")
        self.computed_tokens += sum(a.prompt_tokens - a.cached_tokens for a in answers)
        return answers


def _tail_values(answer: Answer, count: int) -> list[float]:
    """Return the values of a choice's tokens after the first, which has none here."""
    values = answer.prompt_logprobs.values
    if len(values) != count or any(value is None for value in values[1:]):
        raise RequestFailed("the model gave no finite probabilities")
    return [_finite(value) for value in values[1:] if value is not None]


def _finite(value: float) -> float:
    return max(value, LEAST_LOGPROB)
