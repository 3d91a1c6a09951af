"""The running set: one token per row and step."""

import numpy as np

from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.step import Step
from runtime.scheduler.step_rows import StepRows


class DecodeSet:
    """Requests that decode, in a fixed order of rows, with their arrays kept between steps.

    requests  those whose first token is settled
    joining   those that join with the step in flight, which computes their prompt's end: the next
              step takes them along
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._in_flight: Step | None = None
        self.requests: list[Request] = []
        self.joining: list[Request] = []
        self._active: list[Request] = []
        self._last_token = np.zeros(residency.table.page_table.shape[0], dtype=np.int32)
        self._rows = self._each = self._limit = np.zeros(0, dtype=np.int64)
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
        request.held = False
        self._changed = True

    def follow(self, step: Step | None) -> None:
        """Plan from now on for after this step in flight; None: all tokens are known."""
        joining = [] if step is None else step.joining
        self._changed |= bool(joining or self.joining)
        self._in_flight, self.joining = step, joining

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
        return [r for r in self.requests if r.held and r.is_ready and r.committed == r.scheduled]

    def waiting_for_masks(self, step: Step) -> list[Request]:
        """Return the requests of a step's decoding rows that cannot be sampled yet."""
        return [request for request in step.requests[: step.decoding] if not request.is_ready]

    def hold(self, step: Step, requests: list[Request]) -> None:
        """Have rows of a step, whose logits are kept, sit out until their masks are there."""
        entries = step.entries
        for request in requests:
            request.held = True
            step.held.add(entries[request.id])
            self._changed = True

    def settled(self, step: Step, accepted: np.ndarray, tokens: np.ndarray) -> None:
        """Note the token that each row of a decode step sampled.

        accepted  [s] int32 how many each entry has, 0 or 1
        tokens    int32 these
        """
        # Also that of a row that somebody else has by now: it is set anew before it is read.
        lines = step.rows.line[step.rows.sampled]
        own = accepted[: len(lines)] != 0
        self._last_token[lines[own]] = tokens[: int(own.sum())]

    def resume(self, request: Request, token: int) -> None:
        """Have a held request go on with the token that was sampled for it."""
        request.held = False
        self._last_token[request.row] = token
        self._changed = True

    def needs_room(self) -> list[Request]:
        """Return the rows whose next token needs more than they have."""
        self._refresh()
        start = self._residency.table.length[self._rows]
        grows = start % self._residency.spec.growth_tokens == 0
        return [self._active[i] for i in np.flatnonzero(grows)]

    def _refresh(self) -> None:
        if self._changed:
            self._active = [r for r in self.requests if not r.held and r.scheduled < len(r.tokens)]
            self._active += self.joining
            self._rows = np.array([r.row for r in self._active], dtype=np.int64)
            self._each = np.arange(len(self._rows))
            self._limit = np.array([len(r.tokens) for r in self._active], dtype=np.int64)
            self._changed = False

    def plan(self) -> StepRows:
        """Return rows that feed each active row's last token, for which there is room."""
        self._refresh()
        rows = self._assemble(self._active, self._rows, self._fed(), sampled=self._each)
        self._scheduled(self._active, self._rows)
        self._changed |= bool((rows.end >= self._limit).any())
        return rows

    @property
    def closing(self) -> list[Request]:
        """The requests whose last token comes with the step in flight.

        Whoever goes on from the answer needs not compute it if a step feeds it, whatever step is
        next: after a decode step they are in `active`, too.
        """
        if self._in_flight is None:
            return []
        return [r for r in self.active if r.scheduled + 1 == len(r.tokens)]

    def plan_closing(self, requests: list[Request]) -> StepRows:
        """Return rows that feed `closing` requests, and sample none; there is room for them.

        They take part in no later step.
        """
        lines = np.array([r.row for r in requests], dtype=np.int64)
        fed = np.ones(len(requests), dtype=bool)
        rows = self._assemble(requests, lines, fed, sampled=np.zeros(0, dtype=np.int64))
        self._scheduled(requests, lines)
        self._changed = True
        return rows

    def _scheduled(self, requests: list[Request], lines: np.ndarray) -> None:
        self._residency.table.length[lines] += 1
        for request in requests:
            request.scheduled += 1

    def _fed(self) -> np.ndarray:
        """Return which rows' tokens come with the step in flight, [n] bool."""
        if self._in_flight is None:
            return np.zeros(len(self._active), dtype=bool)
        if self._in_flight.rows.requests is self._active:
            return np.ones(len(self._active), dtype=bool)
        entries = self._in_flight.entries
        return np.array([r.id in entries for r in self._active], dtype=bool)

    def _assemble(
        self, requests: list[Request], lines: np.ndarray, fed: np.ndarray, *, sampled: np.ndarray
    ) -> StepRows:
        """Return rows of one token each.

        fed  whose token the host does not know
        """
        zero = np.zeros(len(lines), dtype=np.int64)
        return StepRows(
            requests,
            line=lines,
            start=self._residency.table.length[lines],
            count=np.ones(len(lines), dtype=np.int64),
            ids=np.where(fed, np.int32(0), self._last_token[lines]),
            from_device=fed,
            window_from=zero,
            write_from=zero,
            sampled=sampled,
        )
