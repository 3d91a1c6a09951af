"""The next prefill step: chunks of admitted prompts under a token budget."""

from dataclasses import dataclass

import numpy as np

from mem_cache.spec import div_ceil
from runtime.executor.step_plan import Phase, PromptLogprobSpan, StepPlan
from runtime.scheduler.flight import Step
from runtime.scheduler.prefill_shares import even_budget, share_out
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency, Save


@dataclass(slots=True)
class _Chunk:
    request: Request
    start: int
    end: int
    window: np.ndarray
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
    overlap       steps may be in flight when the next one is launched
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
        overlap: bool = False,
    ) -> None:
        self._residency = residency
        self._waiting = waiting
        self._chunk_tokens = chunk_tokens
        self._logit_rows = logit_rows
        self._context = context
        self._samples = samples
        self._overlap = overlap

    def plan(self, prefills: list[Request], *, beside: int = 0) -> Step:
        """Return the step for at least one request of `prefills`, in their order.

        prefills  each with something left to compute that is in no step yet
        beside    tokens of others that the step is to have room for
        """
        return self._assemble(self._cut(prefills, beside))

    def is_last_token(self, request: Request) -> bool:
        """Whether all that is left of a prompt is a token that a decode step can take along."""
        at = request.scheduled
        return (
            0 < at == request.target - 1
            and request.window_from == 0
            and request.write_from <= at
            and request.sample.sampling.max_new_tokens > 0
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
            window = self._residency.table.window[request.row].copy()
            self._residency.open_window(request, end)
            saves = self._residency.plan_saves(request, start, end)
            request.scheduled = self._residency.table.length[request.row] = end
            chunks.append(_Chunk(request, start, end, window, saves))
        return chunks

    def beside(self, step: Step, requests: list[Request]) -> list[Request]:
        """Return those of whom a step can compute one token more, within budget and context."""
        if self._chunk_tokens > 0:
            requests = requests[: max(0, self._chunk_tokens - len(step.plan.input_ids))]
        if self._context is None:
            return requests
        left = self._context - int((step.plan.chunk_start + step.plan.chunk_len).sum())
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

    def _assemble(self, chunks: list[_Chunk]) -> Step:
        table = self._residency.table
        requests = [c.request for c in chunks]
        rows = np.array([r.row for r in requests], dtype=np.int64)
        width = max(div_ceil(c.end, self._residency.spec.page_size) for c in chunks)
        saves = [
            (i, save)
            for i, c in enumerate(chunks)
            for save in (
                Save(c.end, int(table.ring[c.request.row]), table.window[c.request.row]),
                *c.saves,
            )
        ]
        sampled = [
            i
            for i, c in enumerate(chunks)
            if c.end == c.request.target and c.request.sample.sampling.max_new_tokens > 0
        ]
        # Once each, also where several rows complete the same prompt in this step.
        twins = {twin: i for i in sampled for twin in self._waiting.twins(requests[i])}
        if self._samples is not None:
            twins = dict(list(twins.items())[: max(0, self._samples - len(sampled))])
        samples = [requests[i].sample for i in sampled] + [twin.sample for twin in twins]
        sampled += twins.values()
        spans = [s for i, c in enumerate(chunks) if (s := _span(i, c)) is not None]
        copies = self._residency.take_copies()
        plan = StepPlan(
            phase=Phase.PREFILL,
            input_ids=np.concatenate([c.request.tokens[c.start : c.end] for c in chunks]),
            chunk_start=np.array([c.start for c in chunks], dtype=np.int64),
            chunk_len=np.array([c.end - c.start for c in chunks], dtype=np.int64),
            page_table=table.page_table[rows, :width],
            window=np.stack([c.window for c in chunks]),
            ring=table.ring[rows],
            window_from=np.array([r.window_from for r in requests], dtype=np.int64),
            write_from=np.array([r.write_from for r in requests], dtype=np.int64),
            save_row=np.array([i for i, _ in saves], dtype=np.int64),
            save_position=np.array([s.position for _, s in saves], dtype=np.int64),
            save_ring=np.array([s.ring for _, s in saves], dtype=np.int32),
            save_window=np.stack([s.window for _, s in saves]),
            page_copies=copies.pages,
            swa_copies=copies.swa,
            ring_copies=copies.rings,
            sampled=np.array(sampled, dtype=np.int64),
            samples=samples,
            positions=np.array([chunks[i].end for i in sampled], dtype=np.int64),
            prompt_logprobs=spans,
        )
        flies = self._overlap and not (twins or spans)
        reads = any(sample.reads_output for sample in samples)
        return Step(plan, requests, rows, 0, list(twins), flies=flies, reads=reads)


def _span(row: int, chunk: _Chunk) -> PromptLogprobSpan | None:
    """Return the prompt positions of this chunk whose logits are wanted, and move on past them."""
    request = chunk.request
    wanted = request.sample.logprobs
    if request.logprob_next is None or wanted is None:
        return None
    start, stop = request.logprob_next, min(chunk.end, request.prompt_tokens - 1)
    if stop <= start:
        return None
    request.logprob_next = stop if stop < request.prompt_tokens - 1 else None
    return PromptLogprobSpan(
        row=row,
        start=start,
        stop=stop,
        targets=request.tokens[start + 1 : stop + 1],
        top=wanted.top,
        token_ids=wanted.token_ids,
    )
