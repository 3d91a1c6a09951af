"""What the next step is: prefill and decode in turns, and who yields when pages run out."""

from collections.abc import Callable

from runtime.executor.step_plan import Phase
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.flight import Step
from runtime.scheduler.joint_step import joint_step, with_closing
from runtime.scheduler.prefill import PrefillPlanner
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

__all__ = ["Planning"]


class Planning:
    """Chooses among what is admitted; `prefills` and `decoding` are the scheduler's own.

    overlap  steps may be in flight when the next one is launched
    land     settles the step in flight, which may end somebody; False: there is none
    retract  puts a running request back into the queue
    """

    def __init__(
        self,
        residency: Residency,
        *,
        prefills: list[Request],
        decoding: DecodeSet,
        planner: PrefillPlanner,
        overlap: bool,
        land: Callable[[], bool],
        retract: Callable[[Request], None],
    ) -> None:
        self._residency = residency
        self._prefills = prefills
        self._decoding = decoding
        self._planner = planner
        self._overlap = overlap
        self._land = land
        self._retract = retract
        self._last_phase = Phase.DECODE

    def next_step(self) -> Step | None:
        """Return the next step: prefill and decode take turns when both have work.

        Prompts of which only the last token is left need no turn: they join those that decode.
        None: there is nothing to compute.
        """
        last = set(self._last_tokens)
        chunks = [request for request in self._to_compute if request not in last]
        if chunks and (self._last_phase is Phase.DECODE or not self._decoding.active):
            return self._prefill(chunks)
        self._find_decode_pages()
        if self._decoding.active:
            return self._decode()
        return self._prefill(self._to_compute) if self._to_compute else None

    def _prefill(self, requests: list[Request]) -> Step:
        self._last_phase = Phase.PREFILL
        closing = self._decoding.closing
        step = self._planner.plan(requests, beside=len(closing))
        closing = self._planner.beside(step, closing)
        closing = [r for r in closing if self._residency.try_grow(r, r.scheduled)]
        return with_closing(step, self._decoding.plan_closing(closing)) if closing else step

    def _decode(self) -> Step:
        self._last_phase = Phase.DECODE
        last = self._last_tokens
        step = self._decoding.plan()
        return joint_step(step, self._planner.plan(last)) if last else step

    @property
    def _last_tokens(self) -> list[Request]:
        """The prompts whose last token the next decode step takes along, if there is one."""
        if not self._overlap or not self._decoding.active:
            return []
        return [r for r in self._to_compute if self._planner.is_last_token(r)]

    @property
    def _to_compute(self) -> list[Request]:
        """The prefills of which some is in no step yet."""
        return [request for request in self._prefills if request.scheduled < request.target]

    def _find_decode_pages(self) -> None:
        """Give each row the page its next position opens.

        Where there is none, settle the step in flight; then retract.
        """
        for request in self._decoding.needs_page() if self._decoding.active else []:
            while request.row >= 0 and not self._residency.try_grow(request, request.scheduled):
                if self._land():
                    self._find_decode_pages()
                    return
                self._retract(self._victim())

    def _victim(self) -> Request:
        """Return who yields: the lowest priority, then the newest."""
        running = [*self._prefills, *self._decoding.requests]
        return min(running, key=lambda r: (r.priority, -r.arrival_s, -r.id))
