"""The next prefill step: chunks of admitted prompts under a token budget."""

from dataclasses import dataclass

import numpy as np

from runtime.scheduler.prefill_shares import even_budget, share_out
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency, Save
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.step_rows import StepRows
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import PromptSpan


@dataclass(slots=True)
class _Chunk:
    request: Request
    start: int
    end: int
    saves: list[Save]


class PrefillPlanner:
    """Cuts chunks as `share_out` says; its rows are in the order of admission.

    chunk_tokens  prompt tokens per step, -1 for no limit
    logit_rows    prompt positions whose logits one step may compute, which bounds their memory
    waiting       a request there whose prompt one of the rows completes is sampled from the
                  same logits
    context       tokens before and in the chunks of a step; a longer row takes part alone. None: no
                  limit
    samples       rows that a step may sample, those that have none of their own left out first.
                  None: no limit
    """

    def __init__(
        self,
        residency: Residency,
        waiting: WaitingQueue,
        *,
        chunk_tokens: int,
        logit_rows: int,
        context: int | None = None,
        samples: int | None = None,
    ) -> None:
        self._residency = residency
        self._waiting = waiting
        self._chunk_tokens = chunk_tokens
        self._logit_rows = logit_rows
        self._context = context
        self._samples = samples

    def plan(self, prefills: list[Request], *, beside: int = 0) -> StepRows:
        """Return rows for at least one request of `prefills`, in their order.

        prefills  each with something left to compute that is in no step yet
        beside    tokens of others that the step is to have room for
        """
        return self._assemble(self._cut(prefills, beside))

    def is_last_token(self, request: Request) -> bool:
        """Whether all that is left of a prompt is a token that a decode step can take along."""
        at = request.scheduled
        return (
            0 < at == request.target - 1
            and request.holding.window_from == 0
            and request.sampling.max_new_tokens > 0
            and not self._waiting.twins(request)
        )

    def _cut(self, prefills: list[Request], beside: int) -> list[_Chunk]:
        whole = sum(r.total for r in prefills)
        budget = max(1, self._chunk_tokens - beside) if self._chunk_tokens > 0 else whole
        chunks: list[_Chunk] = []
        tokens = even_budget(prefills, budget)
        shares = share_out(prefills, tokens=tokens, logit_rows=self._logit_rows)
        for request, end in self._within_context(shares):
            start = request.scheduled
            there = self._residency.reserve(request, end - start)
            assert there, f"request {request.id} has no pages of its prompt"
            saves = self._residency.plan_saves(request, start, end)
            request.scheduled = self._residency.table.length[request.row] = end
            chunks.append(_Chunk(request, start, end, saves))
        return chunks

    def beside(self, rows: StepRows, requests: list[Request]) -> list[Request]:
        """Return those of whom a step can compute one token more, within budget and context."""
        if self._chunk_tokens > 0:
            requests = requests[: max(0, self._chunk_tokens - len(rows.ids))]
        if self._context is None:
            return requests
        left = self._context - int(rows.end.sum())
        kept: list[Request] = []
        for request in requests:
            if request.scheduled < left:
                left -= request.scheduled + 1
                kept.append(request)
        return kept

    def _within_context(self, shares: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
        """Leave out rows that make the context too long, the least urgent and newest first."""
        if self._context is None:
            return shares
        left, kept = self._context, set[int]()
        for request, end in sorted(shares, key=lambda share: -share[0].urgency):
            if end <= left or not kept:
                left -= end
                kept.add(request.id)
        return [share for share in shares if share[0].id in kept]

    def _assemble(self, chunks: list[_Chunk]) -> StepRows:
        requests = [c.request for c in chunks]
        sampled = [
            i
            for i, c in enumerate(chunks)
            if c.end == c.request.target and c.request.sampling.max_new_tokens > 0
        ]
        # Once each, also where several rows complete the same prompt in this step.
        twins = {twin: i for i in sampled for twin in self._waiting.twins(requests[i])}
        if self._samples is not None:
            twins = dict(list(twins.items())[: max(0, self._samples - len(sampled))])
        start = np.array([c.start for c in chunks], dtype=np.int64)
        return StepRows(
            requests,
            line=np.array([r.row for r in requests], dtype=np.int64),
            start=start,
            count=np.array([c.end for c in chunks], dtype=np.int64) - start,
            ids=np.concatenate([c.request.tokens[c.start : c.end] for c in chunks]),
            from_device=np.zeros(len(chunks), dtype=bool),
            window_from=np.array([r.holding.window_from for r in requests], dtype=np.int64),
            write_from=np.array([r.holding.write_from for r in requests], dtype=np.int64),
            sampled=np.array(sampled, dtype=np.int64),
            saves=[(i, save) for i, c in enumerate(chunks) for save in c.saves],
            twins=[(row, twin) for twin, row in twins.items()],
            spans=[s for i, c in enumerate(chunks) if (s := _span(i, c)) is not None],
        )


def _span(row: int, chunk: _Chunk) -> PromptSpan | None:
    """Return the prompt positions of this chunk whose logits are wanted, and move on past them."""
    request = chunk.request
    wanted = request.logprobs
    if request.logprob_next is None or wanted is None:
        return None
    start, stop = request.logprob_next, min(chunk.end, request.prompt_tokens - 1)
    if stop <= start:
        return None
    request.logprob_next = stop if stop < request.prompt_tokens - 1 else None
    return PromptSpan(
        row,
        start,
        targets=packed(request.tokens[start + 1 : stop + 1], INT32),
        top=wanted.top,
        ids=packed(wanted.token_ids, INT32),
    )


def prefill_planner(
    settings: SchedulerSettings, residency: Residency, waiting: WaitingQueue
) -> PrefillPlanner:
    """Return the planner that the settings ask for."""
    return PrefillPlanner(
        residency,
        waiting,
        chunk_tokens=settings.chunked_prefill_size,
        logit_rows=settings.max_logit_rows,
        context=settings.step_context,
        samples=settings.step_samples,
    )
