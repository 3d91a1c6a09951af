"""The engine loop: receive, admit, plan, launch, settle the step before, reply.

The scheduler takes its clock, its sockets and its model runner as arguments; it has no thread
and no global state, so that the same code runs under simulated time and faults.
"""

import logging
from collections.abc import Callable, Iterator

from runtime.cache_messages import CacheView, GetCache
from runtime.executor.interface import Executor
from runtime.executor.rank_profiler import profiler_of
from runtime.executor.trace_folder import TraceFolder
from runtime.ipc import Socket
from runtime.messages import (
    Abort,
    Flush,
    Flushed,
    Generate,
    GetState,
    Histogram,
    Outputs,
    Refused,
    Shutdown,
    State,
    Stop,
    ToScheduler,
)
from runtime.profile_messages import StartProfile, StopProfile
from runtime.scheduler.admission import Admission
from runtime.scheduler.cache_view import cache_view
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.endings import Endings
from runtime.scheduler.grammar_gate import GrammarGate, Grammars
from runtime.scheduler.integrity import IntegrityWatch
from runtime.scheduler.plan_builder import PlanBuilder
from runtime.scheduler.planning import Planning
from runtime.scheduler.prefill import prefill_planner
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.refusals import refusal_of
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.settling import Settling
from runtime.scheduler.stats import Stats
from runtime.scheduler.step import Step, StepState

logger = logging.getLogger("umbra.scheduler")

# Between two looks at a step that is not halfway.
EARLY_POLL_S = 1e-3


class Scheduler:
    """Serves requests from `socket` with `runner`, out of the pools that `residency` accounts.

    grammars  makes the masks of outputs that follow one; None: such requests are refused
    traces    where profiles are written; None: they are refused
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        residency: Residency,
        *,
        runner: Executor,
        socket: Socket,
        clock: Callable[[], float],
        grammars: Grammars | None = None,
        traces: TraceFolder | None = None,
    ) -> None:
        self.settings = settings
        self.residency = residency
        self._runner = self._profiler = profiler_of(runner, traces, say=socket.send)
        self._socket = socket
        self._clock = clock
        self.sets = RequestSets(WaitingQueue(settings.schedule_policy), DecodeSet(residency))
        self.stats = Stats(residency, clock, decode_log_interval=settings.decode_log_interval)
        self._admission = Admission(self.sets, residency, clock)
        self._builder = PlanBuilder(residency)
        self._planning = Planning(
            residency,
            builder=self._builder,
            sets=self.sets,
            planner=prefill_planner(settings, residency, self.sets.waiting),
            overlap=settings.overlap,
            settle_in_flight=self._settle_in_flight,
            retract=self._retract,
        )
        self._gate = GrammarGate(grammars, self.sets)
        self._replies = Replies()
        self._endings = Endings(
            residency,
            sets=self.sets,
            gate=self._gate,
            stats=self.stats,
            replies=self._replies,
            on_change=self._admission.wake,
        )
        self._settling = Settling(
            residency,
            sets=self.sets,
            gate=self._gate,
            endings=self._endings,
            stats=self.stats,
            replies=self._replies,
            on_publish=self._admission.wake,
        )
        self._in_flight: Step | None = None
        self._settled_s = 0.0
        self._watch = IntegrityWatch(residency, every_step=settings.check_every_step)
        self.running = True
        self.step_started_s: float | None = None
        self.turned_s = clock()

    # --- the loop

    def run(self) -> None:
        """Serve until a `Shutdown` message."""
        while self.running:
            self.turn()
        self._settle_in_flight()
        self._profiler.close()

    def turn(self) -> None:
        """Do one turn of the loop: launch one step at most, and settle the one in flight."""
        self.turned_s = self._clock()
        flight = self._in_flight
        for message in self._socket.receive(self._patience_s):
            self._receive(message)
        if self._gate.active:
            self._hear_grammars()
        if (early := self._early) is not None:
            self.step_started_s = self._began_s(early)  # which may hang
            self._reply()
            return
        for request in self._admission.admit():
            request.times.admitted(self._clock())
            self.stats.recomputed(request)
        step = self._planning.next_step()
        if step is not None:
            self._launch(step)
        self._settle_in_flight()
        if step is None:
            self._reply()
        else:
            self._sample_and_settle(step, news=flight is not None)
        if step is not None or flight is not None:
            self._watch.stepped(self.sets.running)
        elif not self.sets.by_id:
            self._watch.idle(self.turned_s)

    def _began_s(self, step: Step) -> float:
        """Return when the device may have begun with a step in flight."""
        return max(step.launched_s, self._settled_s)

    @property
    def _early(self) -> Step | None:
        """The step in flight, if it has long to go: who comes meanwhile takes part in the next."""
        step = self._in_flight
        return None if step is None or step.handle is None or step.handle.halfway else step

    @property
    def _patience_s(self) -> float:
        """How long to wait for messages."""
        if self._early is not None:
            return EARLY_POLL_S
        busy = self._in_flight or self.sets.running_count or len(self.sets.waiting)
        return 0.0 if busy else self.settings.idle_poll_s

    def _launch(self, step: Step) -> None:
        self.step_started_s = step.launched_s = self._clock()
        step.handle = self._runner.launch(step.plan)
        step.advance(StepState.LAUNCHED)
        if not step.constrained:  # the plan said how to sample it
            step.advance(StepState.SAMPLED)
        self.step_started_s = None
        self.residency.copies_launched()

    def _sample(self, step: Step) -> None:
        """Sample a launched step with grammars; the tokens of the step before are known."""
        assert step.handle is not None
        self.step_started_s = self._began_s(step)
        if step.decoding and self._gate.active:
            self._gate.gather(step.requests[: step.decoding], step.handle)
        late = self.sets.decoding.waiting_for_masks(step)
        step.handle.sample(self._builder.sample(step.plan, step.rows, kept=late))
        step.advance(StepState.SAMPLED)
        self.sets.decoding.hold(step, late)
        self.step_started_s = None

    def _sample_and_settle(self, step: Step, *, news: bool) -> None:
        """Sample a launched step if need be; leave it in flight, or settle it; reply.

        news  the step before was settled in this turn; its tokens need not wait for this one
        """
        early = news and (step.constrained or not step.overlaps)
        if early:
            self._reply()
        if step.constrained:
            self._sample(step)
        if step.overlaps:
            self._leave_in_flight(step)
        else:
            self._settle(step)
        if early and step.overlaps:
            self.stats.set_compiling(self._gate.queued)  # nothing else has changed since
        else:
            self._reply()

    def _leave_in_flight(self, step: Step | None) -> None:
        self._in_flight = step
        self.sets.decoding.follow(step)

    def _settle_in_flight(self) -> bool:
        """Settle the step in flight; return whether there was one."""
        step = self._in_flight
        if step is not None:
            self._leave_in_flight(None)
            self._settle(step)
        return step is not None

    def _settle(self, step: Step) -> None:
        """Wait for a step, and take in what it produced."""
        assert step.handle is not None
        self.step_started_s = started = self._began_s(step)
        result = step.handle.result()
        self.turned_s = self._settled_s = self._clock()
        self.step_started_s = None
        self._settling.step(step, result, now_s=self.turned_s, elapsed_s=self.turned_s - started)

    def _reply(self) -> None:
        # First: who has a reply finds what it left in the cache announced.
        self.residency.flush_events()
        items = self._replies.take()
        self.stats.update(
            running=self.sets.running_count,
            waiting=len(self.sets.waiting),
            compiling=self._gate.queued,
            waiting_uncached_tokens=self.sets.waiting_uncached_tokens,
        )
        if items:
            self._socket.send(Outputs(items))

    # --- messages

    def _receive(self, message: ToScheduler) -> None:
        match message:
            case Generate():
                self._add(message)
            case Abort():
                for request in self._still_there(message.request_ids):
                    self._endings.abort(request)
            case Stop():
                for request in self._still_there(message.request_ids):
                    self._endings.quietly(request, "finished")
            case Flush():
                self._flush(message)
            case GetState():
                self._socket.send(self.state(message.call_id))
            case GetCache():
                self._socket.send(self._cache_view(message))
            case StartProfile():
                self._profiler.start(message)
                self._socket.send(self.state())  # which tells of it, before anything stalls
            case StopProfile():
                self._profiler.stop(message)
            case Shutdown():
                self.running = False

    def _add(self, message: Generate) -> None:
        refusal = refusal_of(
            message,
            self.settings,
            known=self.sets.by_id,
            waiting=len(self.sets.waiting),
            free_rows=self.residency.table.free,
            has_grammars=self._gate.is_there,
        )
        self.stats.received(message, refused=refusal is not None)
        if refusal is not None:
            self._socket.send(refusal)
            return
        request = Request(message, self.settings.eos_token_ids, self._clock())
        self._watch.changed()
        self.sets.enter(request)
        self._gate.open(request)
        self._admission.wake()

    def _hear_grammars(self) -> None:
        """Take in masks; end the requests whose grammars failed, with a refusal if they can.

        Then sample the rows that were held for their masks: they take part in the next step.
        """
        at_work = bool(self.sets.prefills or self._in_flight)
        for output in self._gate.hear(at_work=at_work):
            request, reason = self._at_rest(output.request_id), output.failure or ""
            if request is None:
                continue
            if request.output_tokens:
                self._endings.fail(request, reason)
            else:
                grammar = request.sampling.grammar
                field = None if grammar is None else grammar.field
                self._socket.send(Refused(request.id, "grammar", reason, param=field))
                self._endings.quietly(request, "refused")
        if self._gate.let_in:
            self._admission.wake()
        if due := self.sets.decoding.due:
            result = self._runner.sample_kept(self._builder.sample_kept(due))
            self.turned_s = self._clock()
            self._settling.held(due, result, now_s=self.turned_s)

    def _still_there(self, request_ids: list[int]) -> Iterator[Request]:
        """Yield those that can be ended; unknown ids are of those that have ended."""
        for request_id in request_ids:
            if (request := self._at_rest(request_id)) is not None:
                yield request

    def _at_rest(self, request_id: int) -> Request | None:
        """Return a request that can be ended now, if it has not ended yet.

        A prompt ends between two chunks, so that what was computed of it can be gone on from.
        """
        request = self.sets.by_id.get(request_id)
        if request is not None and request.has_chunk_in_flight:
            self._settle_in_flight()
            return self.sets.by_id.get(request_id)
        return request

    def _flush(self, message: Flush) -> None:
        busy = len(self.sets.by_id)
        if busy:
            text = f"{busy} requests are waiting or running"
            self._socket.send(Flushed(message.call_id, False, text))
            return
        self._watch.changed()
        self.residency.reset()
        self._socket.send(Flushed(message.call_id, True, "the cache is empty"))

    def state(self, call_id: int = 0) -> State:
        """Return counters, gauges and how long loop and step have been going."""
        started = self.step_started_s  # read first: the loop goes on while another thread asks
        now = self._clock()
        return State(
            call_id,
            dict(self.stats.counters),
            dict(self.stats.gauges),
            step_age_s=now - started if started is not None else 0.0,
            loop_age_s=0.0 if started is not None else now - self.turned_s,
            namespaces=dict(self.stats.namespace_tokens),
            durations=self._durations(),
            profiling=self._profiler.busy,
        )

    def _durations(self) -> dict[str, Histogram]:
        durations = {"eviction": self.residency.evictions.seconds.told()}
        if self._gate.compilations is not None:
            durations["grammar_compilation"] = self._gate.compilations.told()
        return durations

    def _cache_view(self, message: GetCache) -> CacheView:
        return cache_view(
            message,
            self.residency.cache,
            residency=self.residency,
            stats=self.stats,
            requests=self.sets.running,
            time_s=self._clock(),
        )

    # --- planning

    def _retract(self, request: Request) -> None:
        """Put a running request back into the queue; what it computed goes into the tree."""
        logger.info("Retract request %d at %d tokens", request.id, request.committed)
        self.stats.count("retracted_requests")
        self.sets.leave_running(request)
        self.residency.release(request, ended=False)
        request.times.queued(self._clock())
        self.sets.requeue(request)
        self._admission.wake()
