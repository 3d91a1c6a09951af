"""A scheduler of several replicas in one process: token runners, run one after another."""

from collections.abc import Sequence
from dataclasses import replace

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.interface import Executor, StepHandle
from runtime.profile_messages import StartProfile, StopProfile
from runtime.scheduler.grammar_gate import Grammars
from runtime.scheduler.loop import Scheduler
from runtime.scheduler.replica import Replica
from runtime.scheduler.request import Request
from runtime.scheduler.settings import CopyLimits
from runtime.wire.step import Exchange, StepPlan
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.token_exchange import exchange_units
from tests.testing.token_runner import TokenRunner


class CheckedJointExecutor:
    """Runs joint steps on executors of this process, and checks their numbers.

    plans      of all steps so far
    exchanges  of those that had one
    """

    def __init__(self, replicas: Sequence[Executor]) -> None:
        self.replicas = replicas
        self.plans: list[Sequence[StepPlan | None]] = []
        self.exchanges: list[Exchange] = []

    def launch(
        self, plans: Sequence[StepPlan | None], exchange: Exchange | None = None
    ) -> list[StepHandle | None]:
        """Start a step of all replicas."""
        self.plans.append(plans)
        if exchange is not None:
            self.exchanges.append(exchange)
            runners = [one for one in self.replicas if isinstance(one, TokenRunner)]
            if runners:
                exchange_units(runners, exchange)
        numbers = {part.step for part in (*plans, exchange) if part is not None}
        assert numbers == {len(self.plans)}, f"step {len(self.plans)} has the numbers {numbers}"
        return [
            None if plan is None else replica.launch(plan)
            for replica, plan in zip(self.replicas, plans, strict=True)
        ]

    @property
    def steps(self) -> list[list[bool]]:
        """Which replicas had something to compute in each step."""
        return [[plan is not None for plan in plans] for plans in self.plans]


class CountedProfiles:
    """Notes which commands about profiles came."""

    busy = False

    def __init__(self) -> None:
        self.commands: list[StartProfile | StopProfile] = []

    def start(self, message: StartProfile) -> None:
        """Note it."""
        self.commands.append(message)

    def stop(self, message: StopProfile) -> None:
        """Note it."""
        self.commands.append(message)

    def close(self) -> None:
        """Nothing runs."""


class JointRig(Rig):
    """A rig of several replicas, each with pools of the given sizes.

    replicas  of the scheduler
    check     verify the caches after each step
    runners   what runs the steps of each, instead of token runners
    copies    limits of copies between them
    """

    def __init__(
        self,
        sizes: PoolSizes,
        count: int,
        *,
        spec: TreeSpec = SMALL,
        rows: int = 4,
        chunk: int = 16,
        reuse: bool = True,
        overlap: bool = False,
        grammars: Grammars | None = None,
        max_queued: int = 1024,
        replay: int | None = None,
        check: bool = True,
        runners: Sequence[Executor] | None = None,
        copies: CopyLimits | None = None,
    ) -> None:
        super().__init__(
            sizes,
            spec=spec,
            rows=rows,
            chunk=chunk,
            reuse=reuse,
            overlap=overlap,
            max_queued=max_queued,
            replay=replay,
            adjust=lambda settings: replace(
                settings, check_every_step=check, copies=copies or CopyLimits()
            ),
        )
        self.executor = CheckedJointExecutor(
            runners or [TokenRunner(spec, sizes, replay_tokens=replay) for _ in range(count)]
        )
        self.profiles = CountedProfiles()
        self.scheduler = Scheduler(
            self.settings,
            [self.make_residency() for _ in range(count)],
            executor=self.executor,
            profiles=self.profiles,
            socket=self.socket,
            clock=self._tick,
            grammars=grammars,
        )
        self.replicas: list[Replica] = self.scheduler.replicas

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.socket.inbox or any(r.sets.by_id for r in self.replicas))

    @property
    def computed(self) -> list[int]:
        """Prompt tokens that each replica computed."""
        counters = (replica.stats.counters for replica in self.replicas)
        return [int(counted["computed_prompt_tokens"]) for counted in counters]

    def place(self, request_id: int) -> int:
        """Return which replica a request is in."""
        [place] = [k for k, r in enumerate(self.replicas) if request_id in r.sets.by_id]
        return place

    def request(self, request_id: int) -> Request:
        """Return a request that waits or runs."""
        return self.replicas[self.place(request_id)].sets.by_id[request_id]

    def ask(self, prompt: list[int], new: int = 4) -> tuple[int, list[int]]:
        """Serve a request alone; return its replica and its tokens."""
        request = self.send(prompt, new)
        self.scheduler.turn()
        place = self.place(request)
        self.run()
        return place, self.tokens(request)

    def assert_conserved(self) -> None:
        """Assert that all units of an idle scheduler are free or in a tree."""
        assert not self.busy
        for replica in self.replicas:
            self.assert_all_there(replica.residency)
