"""The next prefill step: chunks of admitted prompts under a token budget."""

from dataclasses import dataclass

import numpy as np

from mem_cache.spec import div_ceil
from runtime.executor.step_plan import Phase, PromptLogprobSpan, StepPlan
from runtime.scheduler.prefill_shares import share_out
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
    twins         those of the last plan, in order; they come after the rows that are sampled
    """

    def __init__(
        self, residency: Residency, waiting: WaitingQueue, *, chunk_tokens: int, logit_rows: int
    ) -> None:
        self._residency = residency
        self._waiting = waiting
        self.twins: list[Request] = []
        self._chunk_tokens = chunk_tokens
        self._logit_rows = logit_rows

    def plan(self, prefills: list[Request]) -> tuple[StepPlan, list[Request]]:
        """Return the step for at least one request of `prefills`, and its rows in order."""
        chunks = self._cut(prefills)
        plan = self._assemble(chunks)
        return plan, [chunk.request for chunk in chunks]

    def _cut(self, prefills: list[Request]) -> list[_Chunk]:
        budget = self._chunk_tokens if self._chunk_tokens > 0 else sum(r.total for r in prefills)
        chunks: list[_Chunk] = []
        for request, end in share_out(prefills, tokens=budget, logit_rows=self._logit_rows):
            start = request.scheduled
            window = self._residency.table.window[request.row].copy()
            self._residency.open_window(request, end)
            saves = self._residency.plan_saves(request, start, end)
            request.scheduled = end
            chunks.append(_Chunk(request, start, end, window, saves))
        return chunks

    def _assemble(self, chunks: list[_Chunk]) -> StepPlan:
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
        self.twins = list(twins)
        samples = [requests[i].sample for i in sampled] + [twin.sample for twin in self.twins]
        sampled += twins.values()
        copies = self._residency.take_copies()
        return StepPlan(
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
            prompt_logprobs=[s for i, c in enumerate(chunks) if (s := _span(i, c)) is not None],
        )


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
