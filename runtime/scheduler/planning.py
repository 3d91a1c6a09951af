"""What the next step is: prefill and decode in turns, and who yields when pages run out."""

from collections.abc import Callable

from runtime.scheduler.plan_builder import PlanBuilder
from runtime.scheduler.prefill import PrefillPlanner
from runtime.scheduler.request import Request
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.step import Step
from runtime.scheduler.step_rows import StepRows

__all__ = ["ChunkTurns", "Planning"]


class ChunkTurns:
    """Whose turn it is, where chunks of prompts and decoding rows take turns.

    All replicas share it: they compute chunks in the same steps, as one with chunks holds up all.

    had      the last step had chunks
    planned  the one that is being planned has
    """

    def __init__(self) -> None:
        self.had = self.planned = False

    def advance(self) -> None:
        """Note that the step was launched."""
        self.had, self.planned = self.planned, False


class Planning:
    """Chooses among what is admitted.

    turns             of all replicas
    overlap           steps may be in flight when the next one is launched
    settle_in_flight  settles the step in flight, which may end requests; False: there is none
    retract           puts a running request back into the queue
    """

    def __init__(
        self,
        residency: Residency,
        *,
        sets: RequestSets,
        planner: PrefillPlanner,
        builder: PlanBuilder,
        turns: ChunkTurns,
        overlap: bool,
        settle_in_flight: Callable[[], bool],
        retract: Callable[[Request], None],
    ) -> None:
        self._residency = residency
        self._sets = sets
        self._decoding = sets.decoding
        self._planner = planner
        self._builder = builder
        self._overlap = overlap
        self._settle_in_flight = settle_in_flight
        self._retract = retract
        self._turns = turns

    def next_step(self, number: int) -> Step | None:
        """Return the step of this number: prefill and decode take turns when both have work.

        Prompts of which only the last token is left need no turn: they join those that decode.
        None: there is nothing to compute.
        """
        last = set(self._last_tokens)
        chunks = [request for request in self._to_compute if request not in last]
        if chunks and not (self._turns.had and self._decoding.active):
            return self._prefill(chunks, number)
        self._find_decode_room()
        if self._decoding.active:
            return self._decode(number)
        return self._prefill(self._to_compute, number) if self._to_compute else None

    def _prefill(self, requests: list[Request], number: int) -> Step:
        self._turns.planned = True
        closing = self._decoding.closing
        rows = self._planner.plan(requests, beside=len(closing))
        told = len(rows.requests)
        closing = self._planner.beside(rows, closing)
        closing = [r for r in closing if self._residency.reserve(r, 1)]
        # Whoever has the same prompt may be admitted before the next step is planned, and
        # log-probabilities of prompts are told with the first token.
        overlaps = self._overlap and not (rows.twins or rows.spans)
        if closing:
            rows = rows.followed_by(self._decoding.plan_closing(closing))
        return self._step(number, rows, told=told, decoding=0, overlaps=overlaps)

    def _decode(self, number: int) -> Step:
        last = self._last_tokens
        rows = self._decoding.plan()
        decoding = len(rows.requests)
        if last:
            rows = rows.followed_by(self._planner.plan(last))
        told = len(rows.requests)
        return self._step(number, rows, told=told, decoding=decoding, overlaps=self._overlap)

    def _step(
        self, number: int, rows: StepRows, *, told: int, decoding: int, overlaps: bool
    ) -> Step:
        plan = self._builder.build(rows, step=number, decoding=decoding)
        constrained = plan.sampling is None
        return Step(rows, plan, told, decoding, overlaps=overlaps, constrained=constrained)

    @property
    def _last_tokens(self) -> list[Request]:
        """The prompts whose last token the next decode step takes along, if there is one."""
        if not self._overlap or not self._decoding.active:
            return []
        return [r for r in self._to_compute if self._planner.is_last_token(r)]

    @property
    def _to_compute(self) -> list[Request]:
        """The prefills of which some is in no step yet."""
        return [request for request in self._sets.prefills if request.scheduled < request.target]

    def _find_decode_room(self) -> None:
        """Give each row what its next token needs.

        Where that cannot be had, settle the step in flight; then retract.
        """
        for request in self._decoding.needs_room() if self._decoding.active else []:
            while request.row >= 0 and not self._residency.reserve(request, 1):
                if self._settle_in_flight():
                    self._find_decode_room()
                    return
                self._retract(self._victim())

    def _victim(self) -> Request:
        """Return who yields: the lowest priority, then the newest."""
        return min(self._sets.running, key=lambda r: (r.level, -r.arrival_s, -r.id))
