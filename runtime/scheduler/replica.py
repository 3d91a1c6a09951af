"""One set of pools with its tree and its requests, stepped by the loop.

With data-parallel attention a scheduler has several replicas, which share nothing but the steps
that they take part in; otherwise it has one. A turn of the loop calls, for each:

    admit   plan   launched   settle_in_flight   sample   finish_turn   take_replies
"""

import logging
from collections.abc import Callable, Iterator

from runtime.cache_messages import CacheView, GetCache
from runtime.executor.interface import Executor, StepHandle
from runtime.messages import FromScheduler, Histogram, Output, Refused
from runtime.scheduler.admission import Admission, Bring
from runtime.scheduler.cache_view import cache_view
from runtime.scheduler.deadlines import Deadlines
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.endings import Endings
from runtime.scheduler.grammar_gate import GrammarGate, Grammars
from runtime.scheduler.integrity import IntegrityWatch
from runtime.scheduler.plan_builder import PlanBuilder
from runtime.scheduler.planning import ChunkTurns, Planning
from runtime.scheduler.prefill import prefill_planner
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.settling import Settling
from runtime.scheduler.shares import FairShares
from runtime.scheduler.stats import Stats
from runtime.scheduler.step import Step, StepState
from runtime.scheduler.times import LoopTimes

__all__ = ["Replica"]

logger = logging.getLogger("umbra.scheduler")


class Replica:
    """Requests, and the pools that `residency` accounts for.

    runner     samples lines whose logits it kept; steps are launched by the loop
    times      of the loop that all replicas of a scheduler take part in; likewise
    turns      of chunks and decoding rows
    send       sends what is not part of a turn's outputs
    grammars   makes the masks of outputs that follow one; None: such requests are refused
    bring      copies what other replicas have of a request that starts; None: there is no other
    name       in log lines; "" where there is no other replica
    shares     of the rows of all replicas; None: this one's
    in_flight  the step that is launched and not settled, between two turns
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        residency: Residency,
        *,
        runner: Executor,
        clock: Callable[[], float],
        times: LoopTimes,
        turns: ChunkTurns,
        send: Callable[[FromScheduler], None],
        grammars: Grammars | None = None,
        name: str = "",
        bring: Bring | None = None,
        shares: FairShares | None = None,
    ) -> None:
        self.residency = residency
        self._runner = runner
        self._clock = clock
        self._times = times
        self._send = send
        self.sets = RequestSets(_waiting_queue(settings, shares), DecodeSet(residency))
        interval = settings.decode_log_interval
        self.stats = Stats(residency, clock, decode_log_interval=interval, name=name)
        self._admission = Admission(self.sets, residency, clock, bring)
        self._builder = PlanBuilder(residency)
        self._planning = Planning(
            residency,
            builder=self._builder,
            turns=turns,
            sets=self.sets,
            planner=prefill_planner(settings, residency, self.sets.waiting),
            overlap=settings.overlap,
            settle_in_flight=self.settle_in_flight,
            retract=self._retract,
        )
        self.gate = GrammarGate(grammars, self.sets)
        self._replies = Replies()
        self._endings = Endings(
            residency,
            sets=self.sets,
            gate=self.gate,
            stats=self.stats,
            replies=self._replies,
            on_change=self._admission.wake,
        )
        self._settling = Settling(
            residency,
            sets=self.sets,
            gate=self.gate,
            endings=self._endings,
            stats=self.stats,
            replies=self._replies,
            on_publish=self._admission.wake,
        )
        self._deadlines = Deadlines(
            settings, self.sets, endings=self._endings, at_rest=self._at_rest, send=send
        )
        self.in_flight: Step | None = None
        self._settled_s = 0.0
        self._watch = IntegrityWatch(residency, every_step=settings.check_every_step)

    @property
    def busy(self) -> bool:
        """Whether a step is in flight, or a request waits or runs."""
        sets = self.sets
        return bool(self.in_flight or sets.running_count or len(sets.waiting) or sets.suspended)

    @property
    def at_work(self) -> bool:
        """Whether a step is in flight, or could be planned whatever masks come."""
        sets = self.sets
        if self.in_flight or sets.prefills or sets.decoding.active or sets.suspended:
            return True
        return any(request.is_ready for request in sets.waiting)

    # --- requests come and go

    def enter(self, request: Request, *, start: int = 0) -> None:
        """Let a new request wait.

        start  where its prefill will start, as far as is known
        """
        self._watch.changed()
        self.sets.enter(request, start=start)
        self._admission.wake()

    def withdraw(self, request: Request) -> None:
        """Forget a waiting request that never ran, to have it enter elsewhere."""
        self.sets.withdraw(request)
        self._admission.wake()

    def awaits_prefix(self, request: Request) -> bool:
        """Whether a waiting request waits for a prefix that another one computes."""
        return self._admission.awaits_prefix(request)

    def abort(self, request_ids: list[int]) -> None:
        """End those requests that are here, on their client's wish."""
        for request in self._still_there(request_ids):
            self._endings.abort(request)

    def stop(self, request_ids: list[int]) -> None:
        """End those requests that are here as finished, without a reply."""
        for request in self._still_there(request_ids):
            self._endings.quietly(request, "finished")

    def _still_there(self, request_ids: list[int]) -> Iterator[Request]:
        """Yield those that can be ended; unknown ids are of those that have ended."""
        for request_id in request_ids:
            if (request := self._at_rest(request_id)) is not None:
                yield request

    def _at_rest(self, request_id: int) -> Request | None:
        """Return a request that can be ended now, if it has not ended yet.

        A prompt ends between two chunks, so that the computed prefix stays reusable.
        """
        request = self.sets.by_id.get(request_id)
        if request is not None and request.has_chunk_in_flight:
            self.settle_in_flight()
            return self.sets.by_id.get(request_id)
        return request

    def _retract(self, request: Request) -> None:
        """Put a running request back into the queue; what it computed goes into the tree."""
        logger.info("Retract request %d at %d tokens", request.id, request.committed)
        self.stats.count("retracted_requests")
        self.sets.leave_running(request)
        self.residency.release(request, ended=False)
        request.times.queued(self._clock())
        self.sets.requeue(request)
        self._admission.wake()

    def reset(self) -> None:
        """Empty the tree. Raises IntegrityError while requests run."""
        self._watch.changed()
        self.residency.reset()

    # --- the parts of a turn

    def expire(self) -> None:
        """End the requests whose time is over."""
        self._deadlines.expire(self._times.turned_s)

    def hear_grammars(self, *, at_work: bool) -> None:
        """Take in masks; end the requests whose grammars failed, with a refusal if they can.

        Then sample the rows that were held for their masks: they take part in the next step.

        at_work  whether this replica or another one could compute meanwhile
        """
        for output in self.gate.hear(at_work=at_work):
            request, reason = self._at_rest(output.request_id), output.failure or ""
            if request is None:
                continue
            if request.output_tokens:
                self._endings.fail(request, reason)
            else:
                grammar = request.sampling.grammar
                field = None if grammar is None else grammar.field
                self._send(Refused(request.id, "grammar", reason, param=field))
                self._endings.quietly(request, "refused")
        if self.gate.let_in:
            self._admission.wake()
        if due := self.sets.decoding.due:
            result = self._runner.sample_kept(self._builder.sample_kept(due))
            self._times.turned_s = self._clock()
            self._settling.held(due, result, now_s=self._times.turned_s)

    @property
    def early(self) -> Step | None:
        """The step in flight while it is less than half done: late arrivals join the next step."""
        step = self.in_flight
        return None if step is None or step.handle is None or step.handle.halfway else step

    def began_s(self, step: Step) -> float:
        """Return when the device may have begun with a step in flight."""
        return max(step.launched_s, self._settled_s)

    def admit(self) -> None:
        """Start waiting requests that fit."""
        if self.sets.suspended:
            self._requeue_suspended()
        admitted = self._admission.admit()
        if admitted:
            self.sets.shares.rate.note(self._times.turned_s, len(admitted))
        for request in admitted:
            request.times.admitted(self._clock())
            if request.cached_tokens is None:
                self.sets.shares.waited(request.share, request.times.queue_s)
            self.stats.recomputed(request)
            self.stats.brought(request)

    def _requeue_suspended(self) -> None:
        """Let those that lost their row wait again: no step in flight has them in any more."""
        self.settle_in_flight()
        while self.sets.suspended:
            request = self.sets.suspended.pop(0)
            request.times.queued(self._clock())
            self.sets.requeue(request)
        self._admission.wake()

    def plan(self, number: int) -> Step | None:
        """Return the next step under its number, or None: there is nothing to compute."""
        return self._planning.next_step(number)

    def launched(self, step: Step, handle: StepHandle, *, at_s: float) -> None:
        """Note that a step was launched."""
        step.launched_s, step.handle = at_s, handle
        step.advance(StepState.LAUNCHED)
        if not step.constrained:  # the plan said how to sample it
            step.advance(StepState.SAMPLED)
        self.residency.copies_launched()

    def settle_in_flight(self) -> bool:
        """Settle the step in flight; return whether there was one."""
        step = self.in_flight
        if step is not None:
            self._leave_in_flight(None)
            self._settle(step)
        return step is not None

    def sample(self, step: Step) -> None:
        """Sample a launched step with grammars; the tokens of the step before are known."""
        assert step.handle is not None
        self._times.step_started_s = self.began_s(step)
        if step.decoding and self.gate.active:
            self.gate.gather(step.requests[: step.decoding], step.handle)
        late = self.sets.decoding.waiting_for_masks(step)
        step.handle.sample(self._builder.sample(step.plan, step.rows, kept=late))
        step.advance(StepState.SAMPLED)
        self.sets.decoding.hold(step, late)
        self._times.step_started_s = None

    def finish_turn(self, step: Step) -> None:
        """Leave a launched step in flight, or settle it if the next one may not overlap it."""
        if step.overlaps:
            self._leave_in_flight(step)
        else:
            self._settle(step)

    def _leave_in_flight(self, step: Step | None) -> None:
        self.in_flight = step
        self.sets.decoding.follow(step)

    def _settle(self, step: Step) -> None:
        """Wait for a step, and take in what it produced."""
        assert step.handle is not None
        times = self._times
        times.step_started_s = started = self.began_s(step)
        result = step.handle.result()
        times.turned_s = self._settled_s = self._clock()
        times.step_started_s = None
        self._settling.step(
            step, result, now_s=self._settled_s, elapsed_s=self._settled_s - started
        )

    def take_replies(self) -> list[Output]:
        """Return all news of requests since the last call, and bring the gauges up to date."""
        # First: who has a reply finds what it left in the cache announced.
        self.residency.flush_events()
        items = self._replies.take()
        self.stats.update(
            running=self.sets.running_count,
            waiting=len(self.sets.waiting),
            compiling=self.gate.queued,
            waiting_uncached_tokens=self.sets.waiting_uncached_tokens,
            queued_tokens=self.sets.waiting.uncached_tokens,
        )
        return items

    def verify(self, *, stepped: bool, idle: bool) -> None:
        """Check the invariants of the cache if it is time to. Raises IntegrityError.

        stepped  a step was launched or settled in this turn
        idle     no request waits or runs in any replica
        """
        if stepped:
            self._watch.stepped(self.sets.running)
        elif idle:
            self._watch.idle(self._times.turned_s)

    # --- what is seen of it

    def durations(self) -> dict[str, Histogram]:
        """Return how long evictions took."""
        return {"eviction": self.residency.evictions.seconds.told()}

    def cache_view(self, message: GetCache) -> CacheView:
        """Return the answer to `message`."""
        return cache_view(
            message,
            self.residency.cache,
            residency=self.residency,
            stats=self.stats,
            requests=self.sets.running,
            time_s=self._clock(),
        )


def _waiting_queue(settings: SchedulerSettings, shares: FairShares | None) -> WaitingQueue:
    return WaitingQueue(
        settings.schedule_policy,
        shares=shares,
        aging_s=settings.priority_aging_s,
        most_passed=settings.max_queued_requests,
    )
