"""A scheduler with its networks: what one scheduler process has, rebuilt after each death."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from mem_cache.tree.policy import Lru, TurnPolicy
from mem_cache.units import Units
from runtime.executor.interface import Executor, StepHandle
from runtime.messages import Ready
from runtime.profile_messages import StartProfile, StopProfile
from runtime.scheduler.evictions import Evictions
from runtime.scheduler.loop import Scheduler
from runtime.scheduler.replica import Replica
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.settings import CopyLimits, SchedulerSettings
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Exchange, KeptResult, Sample, SampleKept, StepPlan, StepResult
from tests.simulation.clock import VirtualClock
from tests.simulation.expected import Expected
from tests.simulation.mirror import Mirror
from tests.simulation.network import Network, Ran, exchange_units
from tests.simulation.pipes import Pipes, SchedulerEnd, Violation
from tests.simulation.recurrence import EOS, replay_tokens
from tests.simulation.script import Arrive, Bad, NoRoom, Stall, WorldSpec

VOCAB = 300
STEP_S = 0.002


class Weather:
    """What is to go wrong in an engine, as events have said.

    bad    numbers of rows to come
    stall_s  by how much the next step takes longer
    """

    def __init__(self) -> None:
        self.bad: list[Bad] = []
        self.stall_s = 0.0
        self.no_pages = self.no_points = 0

    def take(self, event: Bad | NoRoom | Stall) -> None:
        """Note an event."""
        match event:
            case Bad():
                self.bad.append(event)
            case NoRoom(points=True):
                self.no_points += event.calls
            case NoRoom():
                self.no_pages += event.calls
            case Stall():
                # Not their sum: a long step would make the next one longer.
                self.stall_s = max(self.stall_s, event.seconds)

    def spoil(self, rows: Sequence[Ran]) -> None:
        """Make rows not finite, of the kinds that are due."""
        kinds = {row.kind for row in rows}
        for event in [*self.bad]:
            if event.kind == "mixed":
                fit = [*rows] if {"decode", "chunk"} <= kinds else []
            else:
                fit = [row for row in rows if row.kind == event.kind]
            if fit:
                fit[event.row % len(fit)].finite = False
                self.bad.remove(event)


class ShortEvictions(Evictions):
    """Fails when told to, as if everything were in use: never where no row could give way."""

    weather: Weather
    rows_used: Callable[[], int]

    def make_room(self, pages: int) -> bool:
        """Evict, or say that there is nothing to evict."""
        if self.weather.no_pages and self.rows_used() > 1:
            self.weather.no_pages -= 1
            return False
        return super().make_room(pages)

    def drop_points(self, *, swa_pages: int = 0, states: int = 0) -> bool:
        """Drop points; say at times that it was not enough, to whom can do without."""
        done = super().drop_points(swa_pages=swa_pages, states=states)
        if self.weather.no_points:
            self.weather.no_points -= 1
            return False
        return done


class Handle:
    """A step on its way; the result is there when its time has come."""

    def __init__(self, clock: VirtualClock, began_s: float, took_s: float, result: StepResult):
        self._clock, self._result = clock, result
        self.half_s, self.done_s = began_s + took_s / 2, began_s + took_s

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over."""
        return self._clock.now_s >= self.half_s

    halfway = forwarded

    def sample(self, command: Sample) -> None:
        """Without grammars the plan said how."""
        raise Violation(f"step {command.step} is sampled twice")

    def result(self) -> StepResult:
        """Wait for the result and return it."""
        self._clock.advance_to(self.done_s)
        return self._result


class NoLaunch:
    """A `JointExecutor` launches for its replicas."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Never called."""
        raise Violation("a replica launches by itself")

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Never called without grammars."""
        raise Violation("nothing is kept")


class NoProfiles:
    """Nothing is traced."""

    busy = False

    def start(self, message: StartProfile) -> None:
        """Ignore it."""

    def stop(self, message: StopProfile) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Nothing runs."""


class Engine:
    """What one scheduler process has.

    launched  steps so far
    hurt      ids of requests that had a row which was not finite
    starts    where the first row of each request started
    calls     what a client asked for, by id of each of its requests
    left_s    when the client of a request went away, or had all of it
    most_in_flight  requests that the manager had at once
    known     records that have been computed in each namespace
    rotten    pages of each replica that went bad by themselves, or are copies of such
    service   tokens computed for each share
    """

    def __init__(
        self,
        world: WorldSpec,
        *,
        pipes: Pipes,
        clock: VirtualClock,
        wake_s: Callable[[], float],
        seed: int,
        expected: Expected,
    ) -> None:
        self.expected = expected
        self.world, self.pipes, self._clock = world, pipes, clock
        self.spec, self.context = expected.spec, expected.context
        self.weather = Weather()
        self.launched = 0
        self.hurt: set[int] = set()
        self.starts: dict[int, int] = {}
        self.calls: dict[int, Arrive] = {}
        self.left_s: dict[int, float] = {}
        self.most_in_flight = 0
        self.known: dict[str, set[int]] = {}
        self.rotten = [set[int]() for _ in range(world.replicas)]
        self.service = Counter[str]()
        self.mirrors = [Mirror() for _ in range(world.replicas)]
        self.networks = [
            Network(
                self.spec,
                pool_sizes(world),
                lines=world.rows + world.max_queued + 64,
                pages=world.pages,
                spoil=self.weather.spoil,
            )
            for _ in range(world.replicas)
        ]
        self.replicas: Sequence[Executor] = [NoLaunch() for _ in range(world.replicas)]
        pipes.ledger.flushed = self._flushed
        self._draw = Random(seed)
        self._free_s = clock.now_s
        self._numbers = 0
        self.scheduler = Scheduler(
            _settings(world, self.context),
            [self._residency(mirror) for mirror in self.mirrors],
            executor=self,
            profiles=NoProfiles(),
            socket=SchedulerEnd(pipes, clock, wake_s),
            clock=clock,
        )

    def _residency(self, mirror: Mirror) -> Residency:
        world, spec = self.world, self.spec
        residency = Residency(
            spec,
            units=Units(pool_sizes(world)),
            table=RequestTable(spec, rows=world.rows, max_pages=div_ceil(self.context, world.page)),
            replay_tokens=replay_tokens(spec) if world.replay else None,
            reuse=world.reuse,
            policy=ResumePolicy(branch_min_tokens=world.branch_min, waypoint_tokens=world.waypoint),
            eviction=TurnPolicy() if world.turns else Lru(),
            namespace_tokens=world.quota,
            event_sink=mirror if world.reuse else None,
        )
        # Of the object that others have by now, so that all of them fail.
        residency.evictions.__class__ = ShortEvictions
        short = residency.evictions
        assert isinstance(short, ShortEvictions)
        short.weather, short.rows_used = self.weather, lambda: residency.rows_used
        return residency

    @property
    def ready(self) -> Ready:
        """The message that a scheduler begins with."""
        info: dict[str, str | int | float | bool] = {
            "max_running_requests": self.world.rows * self.world.replicas
        }
        return Ready(self.context, VOCAB, [EOS], info)

    @property
    def requests(self) -> list[Request]:
        """All requests that wait or run."""
        return [one for replica in self.scheduler.replicas for one in replica.sets.by_id.values()]

    @property
    def counted(self) -> Counter[str]:
        """Counters of all replicas together."""
        counted = Counter[str]()
        for replica in self.scheduler.replicas:
            counted.update({name: int(n) for name, n in replica.stats.counters.items()})
        return counted

    @property
    def tree_pages(self) -> int:
        """Pages in all trees."""
        return sum(r.residency.cache.tree_pages for r in self.scheduler.replicas)

    def _flushed(self) -> None:
        if self.tree_pages:
            raise Violation("a flushed cache has pages")
        self.known.clear()

    # --- a joint executor

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start a step of all replicas."""
        self.launched += 1
        numbers = {part.step for part in (*plans, exchange) if part is not None}
        if len(numbers) != 1 or not self._numbers < (number := numbers.pop()):
            raise Violation(f"step {self.launched} has the numbers {numbers}")
        self._numbers = number
        if exchange is not None:
            exchange_units([network.memory for network in self.networks], exchange)
            for one in exchange.transfers:
                pages = unpacked(one.pages, INT32).reshape(-1, 2).tolist()
                bad = self.rotten[one.giver]
                self.rotten[one.taker].update(to for page, to in pages if page in bad)
        took_s = STEP_S * (0.5 + self._draw.random()) + self.weather.stall_s
        self.weather.stall_s = 0.0
        began_s = max(self._clock.now_s, self._free_s)
        self._free_s = began_s + took_s
        handles: list[StepHandle | None] = []
        for replica, network, plan in zip(
            self.scheduler.replicas, self.networks, plans, strict=True
        ):
            if plan is None:
                handles.append(None)
                continue
            result = network.run(plan)
            self._note(replica, network.rows)
            handles.append(Handle(self._clock, began_s, took_s, result))
        return handles

    def _note(self, replica: Replica, rows: Sequence[Ran]) -> None:
        """Note whose rows ran."""
        owners = {request.row: request for request in replica.sets.running}
        for ran in rows:
            request = owners.get(ran.line)
            if request is None:
                raise Violation(f"line {ran.line} computes for nobody")
            self.starts.setdefault(request.id, ran.start)
            self.service[request.share.name] += ran.count
            if ran.finite:
                kept = ran.records[ran.kept - ran.start :]
                namespace = self.calls[request.id].namespace
                self.known.setdefault(namespace, set()).update(kept)
            else:
                self.hurt.add(request.id)


def expected_of(world: WorldSpec) -> Expected:
    """Return what calls must be answered in a world."""
    spec = TreeSpec(world.page, world.swa_page, world.window, has_state=world.state)
    return Expected(spec, context=world.pages * world.page, vocab=VOCAB)


def pool_sizes(world: WorldSpec) -> PoolSizes:
    """Return the pools of each replica of a world."""
    live = world.rows if world.live_states and world.state else 0
    states = world.states + live if world.state else 0
    return PoolSizes(world.pages, world.swa_pages if world.window else 0, states, live)


def _settings(world: WorldSpec, context: int) -> SchedulerSettings:
    page = world.page
    return SchedulerSettings(
        context_tokens=context,
        eos_token_ids=(EOS,),
        max_queued_requests=world.max_queued,
        max_queued_tokens=world.max_queued_tokens,
        priority_aging_s=world.aging_s,
        queue_timeout_s=world.queue_timeout_s,
        request_timeout_s=world.request_timeout_s,
        chunked_prefill_size=world.chunk,
        schedule_policy="fcfs" if world.policy == "fcfs" else "lpm",
        overlap=world.overlap,
        copies=CopyLimits(page_bytes=page, step_bytes=world.copy_pages * page),
    )
