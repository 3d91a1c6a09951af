"""The running set: one token per row and step, and who yields when pages run out."""

import numpy as np

from mem_cache.spec import div_ceil
from runtime.executor.step_plan import Phase, SampleState, StepPlan, StepResult
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency


class DecodeSet:
    """Requests that decode, in a fixed order of rows, with their arrays kept between steps."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.requests: list[Request] = []
        self._active: list[Request] = []
        self._last_token = np.zeros(residency.table.page_table.shape[0], dtype=np.int32)
        self._rows = np.zeros(0, dtype=np.int64)
        self._samples: list[SampleState] = []
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

    @property
    def active(self) -> list[Request]:
        """The requests that take part in the next step: all but the held ones."""
        self._refresh()
        return self._active

    @property
    def due(self) -> list[Request]:
        """The held requests that can be sampled now."""
        if len(self.active) == len(self.requests):
            return []
        return [r for r in self.requests if r.held is not None and r.is_ready]

    def settled(self, result: StepResult) -> None:
        """Note the token that each row sampled in the step that was just settled, or hold it."""
        for k, row in result.held.items():
            self._active[k].held = row
            self._changed = True
        self._last_token[self._rows] = result.token_ids
        self._residency.table.length[self._rows] += 1

    def resume(self, request: Request, token: int) -> None:
        """Have a held request go on with the token that was sampled for it."""
        request.held = None
        self._last_token[request.row] = token
        self._changed = True

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
            self._active = [r for r in self.requests if r.held is None]
            self._rows = np.array([r.row for r in self._active], dtype=np.int64)
            self._samples = [r.sample for r in self._active]
            self._changed = False

    def plan(self) -> StepPlan:
        """Return the step that feeds each active row's last token; its page must be there."""
        residency, table = self._residency, self._residency.table
        for request in self._at_boundary(residency.spec.swa_page_size):
            residency.open_window(request, request.committed + 1)
        rows = self._rows
        count = len(rows)
        start = table.length[rows]
        ring, window = table.ring[rows], table.window[rows]
        each = np.arange(count)
        zero = np.zeros(count, dtype=np.int64)
        copies = residency.take_copies()
        return StepPlan(
            phase=Phase.DECODE,
            input_ids=self._last_token[rows],
            chunk_start=start,
            chunk_len=np.ones(count, dtype=np.int64),
            page_table=table.page_table[
                rows, : div_ceil(int(start.max()) + 1, residency.spec.page_size)
            ],
            window=window,
            ring=ring,
            window_from=zero,
            write_from=zero,
            save_row=each,
            save_position=start + 1,
            save_ring=ring,
            save_window=window,
            page_copies=copies.pages,
            swa_copies=copies.swa,
            ring_copies=copies.rings,
            sampled=each,
            samples=self._samples,
            positions=start + 1,
            prompt_logprobs=[],
        )
