"""The engine loop: receive, admit, plan, launch, settle, reply.

The scheduler takes its clock, its sockets and its model runner as arguments; it has no thread
and no global state, so that the same code runs under simulated time and faults.
"""

import logging
from collections.abc import Callable

from runtime.executor.step_plan import ModelRunner, Phase, StepPlan, StepResult
from runtime.ipc import Socket
from runtime.messages import (
    Abort,
    CacheView,
    Flush,
    Flushed,
    Generate,
    GetCache,
    GetState,
    Histogram,
    Outputs,
    Refused,
    Shutdown,
    State,
    Stop,
    ToScheduler,
)
from runtime.scheduler.admission import Admission
from runtime.scheduler.cache_view import cache_view
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.endings import Endings
from runtime.scheduler.grammar_gate import GrammarGate, Grammars
from runtime.scheduler.integrity import IntegrityWatch
from runtime.scheduler.prefill import PrefillPlanner
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.refusals import refusal_of
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request, Status
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.stats import Ending, Stats

logger = logging.getLogger("umbra.scheduler")


class Scheduler:
    """Serves requests from `socket` with `runner`, out of the pools that `residency` accounts.

    grammars  makes the masks of outputs that follow one; None: such requests are refused
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        residency: Residency,
        *,
        runner: ModelRunner,
        socket: Socket,
        clock: Callable[[], float],
        grammars: Grammars | None = None,
    ) -> None:
        self.settings = settings
        self.residency = residency
        self._runner = runner
        self._socket = socket
        self._clock = clock
        self.waiting = WaitingQueue(settings.schedule_policy)
        self.prefills: list[Request] = []
        self.decoding = DecodeSet(residency)
        self.stats = Stats(residency, clock, decode_log_interval=settings.decode_log_interval)
        self._admission = Admission(self.waiting, residency, clock)
        self._planner = PrefillPlanner(
            residency,
            self.waiting,
            chunk_tokens=settings.chunked_prefill_size,
            logit_rows=settings.max_logit_rows,
        )
        self._gate = GrammarGate(grammars, self.waiting, self.decoding)
        self._replies = Replies()
        self._endings = Endings(
            residency,
            waiting=self.waiting,
            prefills=self.prefills,
            decoding=self.decoding,
            gate=self._gate,
            stats=self.stats,
            replies=self._replies,
            on_change=self._admission.wake,
        )
        self._requests = self._endings.requests
        self._last_phase = Phase.DECODE
        self._watch = IntegrityWatch(residency, every_step=settings.check_every_step)
        self.running = True
        self.step_started_s: float | None = None
        self.turned_s = clock()

    # --- the loop

    def run(self) -> None:
        """Serve until a `Shutdown` message."""
        while self.running:
            self.turn()

    def turn(self) -> None:
        """Do one turn of the loop: at most one step."""
        self.turned_s = self._clock()
        busy = bool(self.prefills or len(self.decoding) or len(self.waiting))
        for message in self._socket.receive(0.0 if busy else self.settings.idle_poll_s):
            self._receive(message)
        if self._gate.active:
            self._hear_grammars()
        for request in self._admission.admit(self.prefills, len(self.decoding)):
            request.times.admitted(self._clock())
            self.stats.recomputed(request)
        step = self._plan()
        if step is not None:
            self._run_step(*step)
        # First: who has a reply finds what it left in the cache announced.
        self.residency.flush_events()
        self._reply()
        if step is not None:
            self._watch.stepped([*self.prefills, *self.decoding.requests])
        elif not self._requests:
            self._watch.idle(self.turned_s)

    def _run_step(self, plan: StepPlan, requests: list[Request]) -> None:
        self.step_started_s = started = self._clock()
        step = self._runner.launch(plan)
        self.residency.copies_launched()
        if plan.phase is Phase.DECODE and self._gate.active:
            self._gate.gather(requests, step)
        result = step.result()
        self.turned_s = self._clock()
        self.step_started_s = None
        if plan.phase is Phase.PREFILL:
            tokens = len(plan.input_ids)
            self.stats.prefill_step(requests, tokens=tokens, elapsed_s=self.turned_s - started)
            self._settle_prefill(plan, requests, result)
        else:
            self._settle_decode(requests, result)
            self.stats.decode_step(len(requests))

    def _reply(self) -> None:
        items = self._replies.take()
        self.stats.update(
            running=len(self.prefills) + len(self.decoding),
            waiting=len(self.waiting),
            compiling=self._gate.queued,
        )
        if items:
            self._socket.send(Outputs(items))

    # --- messages

    def _receive(self, message: ToScheduler) -> None:
        match message:
            case Generate():
                self._add(message)
            case Abort():
                self._end_early(message.request_ids, "aborted")
            case Stop():
                self._end_early(message.request_ids, "finished")
            case Flush():
                self._flush(message)
            case GetState():
                self._socket.send(self.state(message.call_id))
            case GetCache():
                self._socket.send(self._cache_view(message))
            case Shutdown():
                self.running = False

    def _add(self, message: Generate) -> None:
        refusal = refusal_of(
            message,
            self.settings,
            known=self._requests,
            waiting=len(self.waiting),
            has_grammars=self._gate.is_there,
        )
        self.stats.received(message, refused=refusal is not None)
        if refusal is not None:
            self._socket.send(refusal)
            return
        request = Request(message, self.settings.eos_token_ids, self._clock())
        self._requests[request.id] = request
        self.waiting.add(request)
        self._gate.open(request)
        self._admission.wake()

    def _hear_grammars(self) -> None:
        """Take in masks; end the requests whose grammars failed, with a refusal if they can.

        Then sample the rows that were held for their masks: they take part in the next step.
        """
        for output in self._gate.hear(prefilling=bool(self.prefills)):
            request, reason = self._requests[output.request_id], output.failure or ""
            if request.output_tokens:
                self._endings.fail(request, reason)
            else:
                self._socket.send(Refused(request.id, "grammar", reason))
                self._endings.quietly(request, "refused")
        if self._gate.let_in:
            self._admission.wake()
        due = self.decoding.due
        if due:
            self._settle_held(due)

    def _end_early(self, request_ids: list[int], how: Ending) -> None:
        """End requests that nobody wants more of; unknown ids are of those that have ended."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._endings.quietly(request, how)

    def _flush(self, message: Flush) -> None:
        busy = len(self.waiting) + len(self.prefills) + len(self.decoding)
        if busy:
            text = f"{busy} requests are waiting or running"
            self._socket.send(Flushed(message.call_id, False, text))
            return
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
            requests=[*self.prefills, *self.decoding.requests],
            time_s=self._clock(),
        )

    # --- planning

    def _plan(self) -> tuple[StepPlan, list[Request]] | None:
        """Return the next step: prefill and decode take turns when both have work."""
        prefill_first = self._last_phase is Phase.DECODE
        if self.prefills and (prefill_first or not self.decoding.active):
            self._last_phase = Phase.PREFILL
            return self._planner.plan(self.prefills)
        self._find_decode_pages()
        if self.decoding.active:
            self._last_phase = Phase.DECODE
            return self.decoding.plan(), list(self.decoding.active)
        if self.prefills:
            self._last_phase = Phase.PREFILL
            return self._planner.plan(self.prefills)
        return None

    def _find_decode_pages(self) -> None:
        """Give each row the page its next position opens; retract others where there is none."""
        for request in self.decoding.needs_page() if self.decoding.active else []:
            while request.status is Status.DECODE and not self.residency.try_grow(
                request, request.committed
            ):
                self._retract(self._victim())

    def _victim(self) -> Request:
        """Return who yields: the lowest priority, then the newest."""
        running = [*self.prefills, *self.decoding.requests]
        return min(running, key=lambda r: (r.priority, -r.arrival_s, -r.id))

    def _retract(self, request: Request) -> None:
        """Put a running request back into the queue; what it computed goes into the tree."""
        logger.info("Retract request %d at %d tokens", request.id, request.committed)
        self.stats.count("retracted_requests")
        self._endings.leave_running(request)
        self.residency.release(request)
        request.status = Status.WAITING
        request.times.queued(self._clock())
        self.waiting.add(request)
        self._admission.wake()

    # --- settling

    def _settle_prefill(self, plan: StepPlan, requests: list[Request], result: StepResult) -> None:
        for span, logprobs in zip(plan.prompt_logprobs, result.prompt_logprobs, strict=True):
            requests[span.row].prompt_logprobs.append(logprobs)
        twins = self._planner.twins
        rows_sampled = len(plan.sampled) - len(twins)
        sampled = {int(row): k for k, row in enumerate(plan.sampled[:rows_sampled])}
        for i, request in enumerate(requests):
            request.committed = request.scheduled
            self.residency.table.length[request.row] = request.committed
            done = request.committed == request.target
            k = sampled.get(i)
            if k is None or result.failed[k] is None:
                self.residency.publish(request, partial=done)
            if request.cached_tokens is None:
                request.cached_tokens = request.matched
                self.stats.cached(request)
            if not done:
                continue
            request.times.computed(self.turned_s)
            self.prefills.remove(request)
            request.status = Status.DECODE
            if k is None:
                self._endings.finish(request, "length", now_s=self.turned_s)
            elif self._take_token(request, result, k):
                self.decoding.add(request)
        for k, twin in enumerate(twins, start=rows_sampled):
            self._take_first_token(twin, result, k)
        self._admission.wake()

    def _take_first_token(self, twin: Request, result: StepResult, k: int) -> None:
        """Give a waiting request the token sampled from another one's prompt, which was its own.

        It goes on waiting, for a row that starts behind the prompt.
        """
        twin.cached_tokens = twin.prompt_tokens
        self.stats.cached(twin)
        twin.times.admitted(self.turned_s)
        twin.times.computed(self.turned_s)
        self._take_token(twin, result, k)

    def _settle_decode(self, requests: list[Request], result: StepResult) -> None:
        self.decoding.settled(result)
        for k, request in enumerate(requests):
            request.committed += 1
            request.scheduled = request.committed
            if k not in result.held:
                self._take_token(request, result, k)

    def _settle_held(self, requests: list[Request]) -> None:
        rows = [request.held for request in requests if request.held is not None]
        result = self._runner.sample(rows)
        self.turned_s = self._clock()
        for k, request in enumerate(requests):
            self.decoding.resume(request, result.token_ids[k])
            self._take_token(request, result, k)

    def _take_token(self, request: Request, result: StepResult, k: int) -> bool:
        """Append sampled token `k` to its request; False if that ended the request."""
        failure = result.failed[k]
        if failure is not None:
            self._endings.fail(request, failure)
            return False
        token = result.token_ids[k]
        request.append(token)
        self.stats.sampled(request)
        self._replies.token(request, token, result.logprobs[k])
        sampling = request.sample.sampling
        enough = request.output_tokens >= sampling.min_new_tokens
        if (token in request.stop_ids and enough) or self._gate.completes(request, token):
            self._endings.finish(request, "stop", now_s=self.turned_s, matched=token)
            return False
        if request.output_tokens >= sampling.max_new_tokens:
            self._endings.finish(request, "length", now_s=self.turned_s)
            return False
        if request.constraint is not None:
            request.constraint.take(token)
        return True
