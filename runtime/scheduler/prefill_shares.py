"""How the tokens of one prefill step are shared out among prompts.

    budget   [ shortest first, but for what the oldest keeps )[ the oldest, half at least )[ rest )

Given out in the order of admission, a budget would go to a long prompt step after step, and a short
one behind it would wait for all of that. Here, among prompts of equal urgency:

- the oldest gets half of the budget at least, so that none starves and the longest takes at most
  twice as long as alone;
- else whoever has fewest tokens left comes first, so that a short prompt is done after a step or
  two. What counts is the way to where a waiting request will start, if that is nearer than the end.

A step takes no more than its share of what is there to compute, if all were as long.

Urgency is priority, handed down: a prompt is as urgent as whoever waits for it. A prompt of less
urgency gets what is left over. The rows of logits that prompts may want are shared in the same way.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from mem_cache.spec import div_ceil
from runtime.scheduler.request import Request


def share_out(
    prefills: Sequence[Request], *, tokens: int, logit_rows: int
) -> list[tuple[Request, int]]:
    """Return who takes part in the next step and where its chunk ends, in order of admission.

    prefills    in order of admission, each with something left to compute; one at least takes part
    tokens      that the step may compute, at least 1
    logit_rows  prompt positions whose logits it may compute, at least 1
    """
    step = _Step(tokens, logit_rows)
    for urgency in sorted({request.urgency for request in prefills}, reverse=True):
        step.serve([request for request in prefills if request.urgency == urgency])
    return [(r, step.ends[r.id]) for r in prefills if step.ends.get(r.id, 0) > r.scheduled]


def even_budget(prefills: Sequence[Request], budget: int) -> int:
    """Return how many tokens the next step computes if all steps that are needed are as long.

    prefills  each with something left to compute
    budget    tokens that a step may compute

    Full steps and a last one of what they leave over would end no sooner, and their prompts later.
    Rounded to whole prompts, the shortest first, where that takes no step more.
    """
    left = sorted(request.target - request.scheduled for request in prefills)
    whole = [0, *accumulate(left)]
    steps = div_ceil(whole[-1], budget)
    even = div_ceil(whole[-1], steps)
    at = bisect_left(whole, even)
    below, above = whole[at - 1], whole[at]
    if above > budget and 2 * below >= even and whole[-1] - below <= (steps - 1) * budget:
        return below
    return min(budget, above)


def logits_wanted(request: Request, start: int, end: int) -> int:
    """Return how many prompt positions in [start, end) have logits that are wanted."""
    if request.logprob_next is None:
        return 0
    return max(0, min(end, request.prompt_tokens - 1) - max(start, request.logprob_next))


class _Step:
    """What is left of a step's budgets, and where each chunk ends so far, by request id."""

    def __init__(self, tokens: int, logit_rows: int) -> None:
        self.ends: dict[int, int] = {}
        self._tokens = tokens
        self._logit_rows = logit_rows

    def serve(self, requests: list[Request]) -> None:
        """Share out what is left among requests of one urgency, the oldest of them first."""
        oldest = requests[0]
        keep_tokens, keep_rows = div_ceil(self._tokens, 2), div_ceil(self._logit_rows, 2)
        keep_tokens = min(keep_tokens, oldest.target - oldest.scheduled)
        end = oldest.scheduled + keep_tokens
        keep_rows = min(keep_rows, logits_wanted(oldest, oldest.scheduled, end))
        in_turn = sorted(requests, key=lambda request: request.goal - request.scheduled)
        for request in in_turn:
            if request is oldest:
                keep_tokens = keep_rows = 0
                self._extend(request, request.target)
            else:
                self._extend(request, request.goal, keep_tokens=keep_tokens, keep_rows=keep_rows)
        for request in in_turn:
            self._extend(request, request.target)

    def _extend(
        self, request: Request, end: int, *, keep_tokens: int = 0, keep_rows: int = 0
    ) -> None:
        """Let a request's chunk go on to `end`, or as far as the budgets reach beside the kept."""
        start = self.ends.get(request.id, request.scheduled)
        end = min(end, start + max(0, self._tokens - keep_tokens))
        rows = max(0, self._logit_rows - keep_rows)
        if request.logprob_next is not None and logits_wanted(request, start, end) > rows:
            end = max(start, request.logprob_next) + rows
        if end > start:
            self.ends[request.id] = end
            self._tokens -= end - start
            self._logit_rows -= logits_wanted(request, start, end)
