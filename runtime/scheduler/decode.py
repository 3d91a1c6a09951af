"""The running set: one token per row and step."""

from dataclasses import replace

import numpy as np

from mem_cache.spec import div_ceil
from runtime.executor.step_plan import Phase, SampleState, StepPlan, StepResult
from runtime.scheduler.flight import Step
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency


class DecodeSet:
    """Requests that decode, in a fixed order of rows, with their arrays kept between steps.

    overlap   steps may be in flight when the next one is launched
    requests  those whose first token is settled
    joining   those that join with the step in flight, which computes their prompt's end: the next
              step takes them along
    """

    def __init__(self, residency: Residency, *, overlap: bool = False) -> None:
        self._residency = residency
        self._overlap = overlap
        self._flight: Step | None = None
        self.requests: list[Request] = []
        self.joining: list[Request] = []
        self._active: list[Request] = []
        self._last_token = np.zeros(residency.table.page_table.shape[0], dtype=np.int32)
        self._rows = self._each = self._limit = np.zeros(0, dtype=np.int64)
        self._samples: list[SampleState] = []
        self._reading: list[SampleState] = []
        self._changed = False

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request) -> None:
        """Let a request whose first token was sampled decode from now on."""
        self.requests.append(request)
        self._last_token[request.row] = request.tokens[request.total - 1]
        self._changed = True

    def remove(self, request: Request) -> None:
        """Take a request out; its row may be reused afterwards."""
        self.requests.remove(request)
        request.held = None
        self._changed = True

    def follow(self, flight: Step | None) -> None:
        """Plan from now on for after this step in flight; None: all tokens are known."""
        joining = [] if flight is None else flight.joining
        self._changed |= bool(joining or self.joining)
        self._flight, self.joining = flight, joining

    @property
    def active(self) -> list[Request]:
        """The requests that take part in the next step.

        All but the held ones, and those whose last token is fed in the step in flight. That of an
        answer whose length is reached is fed as well where nobody waited for it to be known.
        """
        self._refresh()
        return self._active

    @property
    def due(self) -> list[Request]:
        """The held requests that can be sampled now: the step that left their logits is settled."""
        return [
            r
            for r in self.requests
            if r.held is not None and r.is_ready and r.committed == r.scheduled
        ]

    def hold(self, step: Step) -> None:
        """Have rows of a sampled step sit out until they are sampled with their masks."""
        for k, row in step.held.items():
            step.requests[k].held = row
            self._changed = True

    def settled(self, step: Step, result: StepResult) -> None:
        """Note the token that each row of a decode step sampled."""
        # Also that of a row that somebody else has by now: it is set anew before it is read.
        self._last_token[step.rows] = result.token_ids

    def resume(self, request: Request, token: int) -> None:
        """Have a held request go on with the token that was sampled for it."""
        request.held = None
        self._last_token[request.row] = token
        self._changed = True

    @property
    def _reads(self) -> bool:
        """Whether some row of the next step reads its output."""
        if self._reading:
            self._reading = [sample for sample in self._reading if sample.reads_output]
        return bool(self._reading)

    def needs_page(self) -> list[Request]:
        """Return the rows whose next position opens a new full page."""
        page = self._residency.spec.page_size
        return self._at_boundary(page)

    def _at_boundary(self, size: int) -> list[Request]:
        self._refresh()
        start = self._residency.table.length[self._rows]
        return [self._active[i] for i in np.flatnonzero(start % size == 0)]

    def _refresh(self) -> None:
        if self._changed:
            self._active = [
                r for r in self.requests if r.held is None and r.scheduled < len(r.tokens)
            ]
            self._active += self.joining
            self._rows = np.array([r.row for r in self._active], dtype=np.int64)
            self._each = np.arange(len(self._rows))
            self._limit = np.array([len(r.tokens) for r in self._active], dtype=np.int64)
            self._samples = [r.sample for r in self._active]
            self._reading = self._samples
            self._changed = False

    def plan(self) -> Step:
        """Return the step that feeds each active row's last token; its page must be there."""
        residency = self._residency
        for request in self._at_boundary(residency.spec.swa_page_size):
            residency.open_window(request, request.scheduled + 1)
        each, start = self._each, residency.table.length[self._rows]
        plan = replace(
            self._assemble(self._rows, self._feed()),
            sampled=each,
            samples=self._samples,
            positions=start + 1,
        )
        self._scheduled(self._active, self._rows)
        self._changed |= bool((plan.positions >= self._limit).any())
        rows, count = self._rows, len(self._active)
        return Step(plan, self._active, rows, count, flies=self._overlap, reads=self._reads)

    @property
    def closing(self) -> list[Request]:
        """The requests whose last token comes with the step in flight.

        Whoever goes on from the answer needs not compute it if a step feeds it, whatever step is
        next: after a decode step they are in `active`, too.
        """
        if self._flight is None:
            return []
        return [r for r in self.active if r.scheduled + 1 == len(r.tokens)]

    def plan_closing(self, requests: list[Request]) -> StepPlan:
        """Return the plan that feeds `closing` requests, and samples none; their pages are there.

        They take part in no later step.
        """
        assert self._flight is not None
        entries = self._flight.entries
        for request in requests:
            self._residency.open_window(request, request.scheduled + 1)
        rows = np.array([r.row for r in requests], dtype=np.int64)
        feed = np.array([entries[r.id] for r in requests], dtype=np.int64)
        plan = self._assemble(rows, feed)
        self._scheduled(requests, rows)
        self._changed = True
        return plan

    def _scheduled(self, requests: list[Request], rows: np.ndarray) -> None:
        self._residency.table.length[rows] += 1
        for request in requests:
            request.scheduled += 1

    def _feed(self) -> np.ndarray | None:
        """Return which entry of the step in flight each row is fed from; None: none is."""
        if self._flight is None:
            return None
        if self._flight.requests is self._active:
            return self._each
        entries = self._flight.entries
        feed = np.array([entries.get(r.id, -1) for r in self._active], dtype=np.int64)
        return feed if (feed >= 0).any() else None

    def _assemble(self, rows: np.ndarray, feed: np.ndarray | None) -> StepPlan:
        """Return the plan that feeds rows their next token, and samples none."""
        residency, table = self._residency, self._residency.table
        start = table.length[rows]
        ring, window = table.ring[rows], table.window[rows]
        zero = np.zeros(len(rows), dtype=np.int64)
        known = self._last_token[rows]
        copies = residency.take_copies()
        return StepPlan(
            phase=Phase.DECODE,
            input_ids=known if feed is None else np.where(feed < 0, known, np.int32(0)),
            chunk_start=start,
            chunk_len=np.ones(len(rows), dtype=np.int64),
            page_table=table.page_table[
                rows, : div_ceil(int(start.max()) + 1, residency.spec.page_size)
            ],
            window=window,
            ring=ring,
            window_from=zero,
            write_from=zero,
            save_row=np.arange(len(rows)),
            save_position=start + 1,
            save_ring=ring,
            save_window=window,
            page_copies=copies.pages,
            swa_copies=copies.swa,
            ring_copies=copies.rings,
            sampled=zero[:0],
            samples=[],
            positions=zero[:0],
            prompt_logprobs=[],
            feed=feed,
        )
