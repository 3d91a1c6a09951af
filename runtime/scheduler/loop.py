"""The engine loop: receive, admit, plan, launch, settle the step before, reply.

The scheduler takes its clock, its sockets and its executor as arguments; it has no thread
and no global state, so that the same code runs under simulated time and faults.

With data-parallel attention it has several replicas, each with its own pools, tree and requests
(`Replica`), and steps them together: all of them plan, one joint step is launched, then each of
them settles its part of the step before. A replica with nothing to compute takes part idle.
"""

from collections import ChainMap
from collections.abc import Callable, Sequence
from functools import partial

from runtime.cache_messages import GetCache
from runtime.executor.interface import Executor, JointExecutor
from runtime.executor.rank_profiler import profiler_of
from runtime.executor.trace_folder import TraceFolder
from runtime.ipc import Socket
from runtime.messages import (
    Abort,
    Flush,
    Flushed,
    Generate,
    GetState,
    Outputs,
    Queued,
    Shutdown,
    State,
    Stop,
    ToScheduler,
)
from runtime.profile_messages import StartProfile, StopProfile
from runtime.scheduler.grammar_gate import Grammars
from runtime.scheduler.grammar_shares import share_grammars
from runtime.scheduler.joint import Profiles, SoloExecutor
from runtime.scheduler.placement import Placement
from runtime.scheduler.planning import ChunkTurns
from runtime.scheduler.prefix_copies import PrefixCopies
from runtime.scheduler.refusals import Crowd, refusal_of
from runtime.scheduler.replica import Replica
from runtime.scheduler.replies import in_messages
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.shares import FairShares
from runtime.scheduler.state import scheduler_state
from runtime.scheduler.step import Step
from runtime.scheduler.times import LoopTimes
from runtime.share import Share

__all__ = ["Scheduler", "solo_scheduler"]

# Between two looks at a step that is not halfway.
EARLY_POLL_S = 1e-3


class Scheduler:
    """Serves requests from `socket` with `executor`, out of the pools of its replicas.

    residencies  accounts for the pools of each replica
    profiles     traces steps on request
    grammars     makes the masks of outputs that follow one; None: such requests are refused
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        residencies: Sequence[Residency],
        *,
        executor: JointExecutor,
        profiles: Profiles,
        socket: Socket,
        clock: Callable[[], float],
        grammars: Grammars | None = None,
    ) -> None:
        self.settings = settings
        self._executor = executor
        self._profiles = profiles
        self._socket = socket
        self._clock = clock
        self.times = LoopTimes(clock())
        self._turns = ChunkTurns()
        self._copies = PrefixCopies(residencies, settings.copies)
        count = len(residencies)
        self._shares = FairShares()
        self.replicas = [
            Replica(
                settings,
                residency,
                runner=runner,
                clock=clock,
                times=self.times,
                turns=self._turns,
                send=socket.send,
                grammars=share,
                name=f"DP{rank}" if count > 1 else "",
                bring=partial(self._copies.bring, to=rank) if count > 1 else None,
                shares=self._shares,
            )
            for rank, (residency, runner, share) in enumerate(
                zip(residencies, executor.replicas, share_grammars(grammars, count), strict=True)
            )
        ]
        self._grammars = grammars
        self._placement = Placement(
            self.replicas, step_tokens=settings.chunked_prefill_size, clock=clock
        )
        self._by_id = ChainMap(*(replica.sets.by_id for replica in self.replicas))
        self._steps = 0
        self._received = 0
        self._queued = Queued(received=0, tokens=0)
        self.running = True

    # --- the loop

    def run(self) -> None:
        """Serve until a `Shutdown` message."""
        while self.running:
            self.turn()
        for replica in self.replicas:
            replica.settle_in_flight()
        self._profiles.close()

    def turn(self) -> None:
        """Do one turn of the loop: launch one step at most, and settle the one in flight."""
        replicas, times = self.replicas, self.times
        times.turned_s = self._clock()
        flights = [replica.in_flight is not None for replica in replicas]
        for message in self._socket.receive(self._patience_s):
            self._receive(message)
        for replica in replicas:
            replica.expire()
        if any(replica.gate.active for replica in replicas):
            self._hear_grammars()
        if (began_s := self._early_s) is not None:
            times.step_started_s = began_s  # which may hang
            self._reply()
            return
        for replica in replicas:
            replica.admit()
        self._placement.move_waiting()
        self._report_queue()
        steps = [replica.plan(self._steps + 1) for replica in replicas]
        copied = self._launch(steps)
        for replica in replicas:
            replica.settle_in_flight()
        self._sample_and_settle(steps, news=any(flights))
        idle = not any(replica.sets.by_id for replica in replicas)
        for replica, step, flight in zip(replicas, steps, flights, strict=True):
            replica.verify(stepped=copied or flight or step is not None, idle=idle)

    def _hear_grammars(self) -> None:
        """Have all replicas take in masks; the last one waits a moment where none has work."""
        at_work = any(replica.at_work for replica in self.replicas)
        *others, last = self.replicas
        for replica in others:
            replica.hear_grammars(at_work=True)
        last.hear_grammars(at_work=at_work)

    @property
    def _early_s(self) -> float | None:
        """When the step in flight began, if it is less than half done."""
        for replica in self.replicas:
            if (step := replica.early) is not None:
                return replica.began_s(step)
        return None

    @property
    def _patience_s(self) -> float:
        """How long to wait for messages."""
        if self._early_s is not None:
            return EARLY_POLL_S
        return 0.0 if any(replica.busy for replica in self.replicas) else self.settings.idle_poll_s

    def _launch(self, steps: Sequence[Step | None]) -> bool:
        """Launch what is planned, if anything is; return whether replicas copy from each other.

        Copies do not wait for rows: what they lock is free again after this.
        """
        exchange = self._copies.take(self._steps + 1)
        if exchange is None and not any(steps):
            return False
        self._steps += 1
        self._turns.advance()
        times = self.times
        times.step_started_s = started_s = self._clock()
        plans = [None if step is None else step.plan for step in steps]
        handles = self._executor.launch(plans, exchange)
        times.step_started_s = None
        self._copies.launched()
        for replica, step, handle in zip(self.replicas, steps, handles, strict=True):
            if step is not None:
                assert handle is not None, f"a replica has no handle of step {self._steps}"
                replica.launched(step, handle, at_s=started_s)
        return exchange is not None

    def _sample_and_settle(self, steps: Sequence[Step | None], *, news: bool) -> None:
        """Sample launched steps if need be; leave them in flight, or settle them; reply.

        news  steps before were settled in this turn; their tokens need not wait for these
        """
        launched = [(r, s) for r, s in zip(self.replicas, steps, strict=True) if s is not None]
        overlaps = all(step.overlaps for _, step in launched)
        early = news and not (overlaps and not any(step.constrained for _, step in launched))
        if early:
            self._reply()
        for replica, step in launched:
            if step.constrained:
                replica.sample(step)
        for replica, step in launched:
            replica.finish_turn(step)
        if early and overlaps:
            for replica in self.replicas:  # nothing else has changed since
                replica.stats.set_compiling(replica.gate.queued)
        else:
            self._reply()

    def _report_queue(self) -> None:
        """Say how many tokens wait, where they are bounded and that has changed."""
        if self.settings.max_queued_tokens is None:
            return
        queued = Queued(self._received, self._queued_tokens)
        if queued != self._queued:
            self._queued = queued
            self._socket.send(queued)

    @property
    def _queued_tokens(self) -> int:
        return sum(replica.sets.waiting.uncached_tokens for replica in self.replicas)

    def _reply(self) -> None:
        items = [item for replica in self.replicas for item in replica.take_replies()]
        if items:
            for part in in_messages(items):
                self._socket.send(Outputs(part))

    # --- messages

    def _receive(self, message: ToScheduler) -> None:
        match message:
            case Generate():
                self._add(message)
            case Abort():
                for replica in self.replicas:
                    replica.abort(message.request_ids)
            case Stop():
                for replica in self.replicas:
                    replica.stop(message.request_ids)
            case Flush():
                self._flush(message)
            case GetState():
                self._socket.send(self.state(message.call_id))
            case GetCache():
                self._socket.send(self.replicas[message.replica].cache_view(message))
            case StartProfile():
                self._profiles.start(message)
                self._socket.send(self.state())  # which tells of it, before anything stalls
            case StopProfile():
                self._profiles.stop(message)
            case Shutdown():
                self.running = False

    def _add(self, message: Generate) -> None:
        self._received += 1
        refusal = refusal_of(
            message,
            self.settings,
            known=self._by_id,
            crowd=self._crowd(message.share),
            has_grammars=self._grammars is not None,
        )
        if refusal is not None:
            self.replicas[0].stats.received(message, refused=True)
            self._socket.send(refusal)
            return
        request = Request(message, self.settings.eos_token_ids, self._clock())
        replica, start = self._placement.choose(request)
        replica.stats.received(message, refused=False)
        replica.enter(request, start=start)
        replica.gate.open(request)

    def _crowd(self, share: Share) -> Crowd:
        """Return who waits before a request of this share."""
        replicas, shares = self.replicas, self._shares
        waiting = sum(len(replica.sets.waiting) for replica in replicas)
        return Crowd(
            waiting=waiting,
            tokens=self._queued_tokens,
            free_rows=sum(replica.residency.table.free for replica in replicas),
            share_waiting=shares.waiting(share),
            share_running=shares.running(share),
            queue_s=shares.rate.seconds_for(waiting, self.times.turned_s),
        )

    def _flush(self, message: Flush) -> None:
        busy = len(self._by_id)
        if busy:
            text = f"{busy} requests are waiting or running"
            self._socket.send(Flushed(message.call_id, False, text))
            return
        for replica in self.replicas:
            replica.reset()
        self._socket.send(Flushed(message.call_id, True, "the cache is empty"))

    def state(self, call_id: int = 0) -> State:
        """Return counters, gauges and how long loop and step have been going."""
        return scheduler_state(
            call_id,
            self.replicas,
            times=self.times,
            clock=self._clock,
            compilations=None if self._grammars is None else self._grammars.compilations,
            profiling=self._profiles.busy,
        )


def solo_scheduler(
    settings: SchedulerSettings,
    residency: Residency,
    *,
    runner: Executor,
    socket: Socket,
    clock: Callable[[], float],
    grammars: Grammars | None = None,
    traces: TraceFolder | None = None,
) -> Scheduler:
    """Return a scheduler of one replica.

    runner  runs its steps
    traces  where profiles are written; None: they are refused
    """
    profiler = profiler_of(runner, traces, say=socket.send)
    return Scheduler(
        settings,
        [residency],
        executor=SoloExecutor(profiler),
        profiles=profiler,
        socket=socket,
        clock=clock,
        grammars=grammars,
    )
